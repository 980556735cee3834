"""Compares the resources that a job requests with those of a machine on which orch itself starts it. This module has no
side effects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.protocol.quantities import size

if TYPE_CHECKING:
    from orchestrator.specs.job import Resources


@dataclass(frozen=True)
class Has:
    """The cores, GPUs and bytes of memory that a machine has for the run."""

    cores: int
    gpus: int
    memory: int


def lacking(resources: Resources, has: Has) -> dict[str, str]:
    """Return a dict from the name of each field of a job's `resources` that the machine can't satisfy to an error
    message.

    The caller puts the machine's name in front of the message.
    """
    found = {}
    for field, what, there in (("cpus", "cores", has.cores), ("gpus", "GPUs", has.gpus)):
        if (asked := getattr(resources, field) or 0) > there:
            found[field] = f"has {there} {what}, and the job asks for {asked}"
    if (asked := resources.mem or 0) > has.memory:
        found["mem"] = f"has {size(has.memory)} of memory, and the job asks for {size(asked)}"
    return found

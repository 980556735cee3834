"""What a job asks of each machine that orch itself starts it on, and what such a machine lacks of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.protocol.quantities import size


@dataclass(frozen=True)
class Has:
    """What a machine has for the run: cores, GPUs and bytes of memory."""

    cores: int
    gpus: int
    memory: int


def lacking(resources: Mapping[str, Any], has: Has) -> dict[str, str]:
    """Return what of the job's `resources` a machine can't give: the field, and why in words that follow its name."""
    found = {}
    for field, what, there in (("cpus", "cores", has.cores), ("gpus", "GPUs", has.gpus)):
        if (asked := resources.get(field) or 0) > there:
            found[field] = f"has {there} {what}, and the job asks for {asked}"
    if (asked := resources.get("mem") or 0) > has.memory:
        found["mem"] = f"has {size(has.memory)} of memory, and the job asks for {size(asked)}"
    return found

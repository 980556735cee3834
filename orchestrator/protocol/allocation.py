"""Reads which machines a scheduler's job has, from the job's environment variables and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Callable

from orchestrator.protocol.schedulers import SCHEDULERS

ReadFile = Callable[[str], str]


class AllocationError(Exception):
    """This process does not run in a scheduler's job, or the job does not have the expected machines."""


@dataclass(frozen=True)
class Allocation:
    """The machines that a scheduler has given to the job in which a process runs."""

    kind: str  # a key of SCHEDULERS
    job: str  # the job's number
    hosts: tuple[str, ...]
    counts: tuple[int | None, ...]  # the number of slots on each host; None if the scheduler does not report it

    @property
    def title(self) -> str:
        """Return the scheduler's name for use in messages."""
        return SCHEDULERS[self.kind].title


def read_allocation(environ: Mapping[str, str], read_file: ReadFile, only: str = "") -> Allocation | None:
    """Return the allocation of the job in which this process runs, or None if it runs in no job.

    `only` restricts the search to one kind of scheduler; "" searches all kinds. Raises AllocationError if the job's
    list of machines can't be read.
    """
    for row in SCHEDULERS.values():
        if only not in ("", row.name) or not (found := environ.get(row.machines, "").strip()):
            continue
        try:
            text = read_file(found) if row.lists_in_file else found
        except (OSError, UnicodeDecodeError) as error:
            raise AllocationError(f"{row.machines} names {found}, which can't be read: {error}") from None
        try:
            slots = row.slots(text, environ)
        except ValueError as error:
            raise AllocationError(f"{row.title}'s list of nodes can't be read: {error}") from None
        if not slots:
            raise AllocationError(f"{row.machines} names {found}, which lists no host")
        return Allocation(row.name, environ.get(row.number, ""), tuple(slots), tuple(slots.values()))
    return None

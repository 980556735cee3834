"""Reads which machines a scheduler's job has, from the job's environment variables and files.

Slurm lists the machines in a variable. Other schedulers write a file: Grid Engine writes a line for each machine with
the number of its slots, and PBS, OAR and LSF write a line for each slot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Callable

from orchestrator.protocol.hostlist import expand
from orchestrator.protocol.layout import TITLES

ReadFile = Callable[[str], str]


class AllocationError(Exception):
    """This process does not run in a scheduler's job, or the job does not have the expected machines."""


@dataclass(frozen=True)
class Allocation:
    """The machines that a scheduler has given to the job in which a process runs."""

    kind: str  # a key of TITLES
    job: str  # the job's number
    hosts: tuple[str, ...]
    counts: tuple[int | None, ...]  # the number of slots on each host; None if the scheduler does not report it

    @property
    def title(self) -> str:
        """Return the scheduler's name for use in messages."""
        return TITLES[self.kind]


def expand_nodes(text: str) -> list[str]:
    """Return the hosts in Slurm's list of nodes. Raises AllocationError if the list can't be read."""
    try:
        return expand(text)
    except ValueError as error:
        raise AllocationError(f"Slurm's list of nodes can't be read: {error}") from None


def read_allocation(environ: Mapping[str, str], read_file: ReadFile, only: str = "") -> Allocation | None:
    """Return the allocation of the job in which this process runs, or None if it runs in no job.

    `only` restricts the search to one kind of scheduler; "" searches all kinds. Raises AllocationError if the job's
    list of machines can't be read.
    """
    for kind, variable, number, lines in _SOURCES:
        if only not in ("", kind) or not (found := environ.get(variable, "").strip()):
            continue
        job = environ.get(number, "")
        if kind == "slurm":
            hosts = expand_nodes(found)
            per_host = environ.get("SLURM_TASKS_PER_NODE") or environ.get("SLURM_JOB_CPUS_PER_NODE") or ""
            return Allocation(kind, job, tuple(hosts), slurm_counts(per_host, len(hosts)))
        try:
            slots = lines(read_file(found))
        except (OSError, UnicodeDecodeError) as error:
            raise AllocationError(f"{variable} names {found}, which can't be read: {error}") from None
        if not slots:
            raise AllocationError(f"{variable} names {found}, which lists no host")
        return Allocation(kind, job, tuple(slots), tuple(slots.values()))
    return None


def slurm_counts(text: str, hosts: int) -> tuple[int | None, ...]:
    """Parse Slurm's notation for a number per host: `4(x2),1` means 4, 4 and 1. If the text can't be parsed, the number
    of every host is None.
    """
    counts: list[int | None] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,5})(?:\(x(\d{1,5})\))?", part.strip())
        if match is None:
            return (None,) * hosts
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts) if len(counts) == hosts else (None,) * hosts


def counted_lines(text: str) -> dict[str, int]:
    """Return the number of slots of each host, from a file with one line per slot. Hosts are in the order of their
    first lines.
    """
    found: dict[str, int] = {}
    for host in _first_words(text):
        found[host] = found.get(host, 0) + 1
    return found


def slots_by_line(text: str) -> dict[str, int]:
    """Return the number of slots of each host in Grid Engine's file.

    Each line is `HOST SLOTS QUEUE PROCESSORS`. A host has several lines if several queues gave it slots.
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[1].isdecimal():
            found[words[0]] = found.get(words[0], 0) + int(words[1])
    return found


def _first_words(text: str) -> Iterator[str]:
    return (words[0] for line in text.splitlines() if (words := line.split()))


_SOURCES: tuple[tuple[str, str, str, Callable[[str], dict[str, int]]], ...] = (
    ("slurm", "SLURM_JOB_NODELIST", "SLURM_JOB_ID", counted_lines),
    ("sge", "PE_HOSTFILE", "JOB_ID", slots_by_line),
    ("oar", "OAR_NODEFILE", "OAR_JOB_ID", counted_lines),  # before PBS, because OAR may set PBS's variables too
    ("lsf", "LSB_DJOB_HOSTFILE", "LSB_JOBID", counted_lines),
    ("pbs", "PBS_NODEFILE", "PBS_JOBID", counted_lines),
)
"""For each scheduler: the variable with its list of machines or the file's path, the variable with the job's number,
and the reader of the file.
"""

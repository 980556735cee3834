"""Readers of the lists in which schedulers name the machines of a job.

Slurm lists the machines in a variable. Other schedulers write a file: Grid Engine writes a line for each machine with
the number of its slots, and PBS, OAR and LSF write a line for each slot. Each reader gets the text and the job's
environment variables, and returns the number of slots of each host, or None if the number is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Optional

from orchestrator.protocol.hostlist import expand

Slots = dict[str, Optional[int]]


def from_slurm(text: str, environ: Mapping[str, str]) -> Slots:
    """Read Slurm's list of nodes, such as `n[1-3]`. Raises ValueError if the list can't be read."""
    hosts = expand(text)
    per_host = environ.get("SLURM_TASKS_PER_NODE") or environ.get("SLURM_JOB_CPUS_PER_NODE") or ""
    return dict(zip(hosts, _numbers(per_host, len(hosts))))


def _numbers(text: str, hosts: int) -> list[int | None]:
    """Parse Slurm's notation for a number per host: `4(x2),1` means 4, 4 and 1. If the text can't be parsed, the number
    of every host is None.
    """
    counts: list[int | None] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,5})(?:\(x(\d{1,5})\))?", part.strip())
        if match is None:
            return [None] * hosts
        counts += [int(match[1])] * int(match[2] or 1)
    return counts if len(counts) == hosts else [None] * hosts


def by_lines(text: str, environ: Mapping[str, str]) -> Slots:
    """Read a file with one line per slot. Hosts are in the order of their first lines."""
    found: dict[str, int] = {}
    for host in (words[0] for line in text.splitlines() if (words := line.split())):
        found[host] = found.get(host, 0) + 1
    return {**found}


def by_numbers(text: str, environ: Mapping[str, str]) -> Slots:
    """Read Grid Engine's file, whose lines are `HOST SLOTS QUEUE PROCESSORS`. A host has several lines if several
    queues gave it slots.
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[1].isdecimal():
            found[words[0]] = found.get(words[0], 0) + int(words[1])
    return {**found}

"""Parses the hosts of a deepspeed command: its hostfile, --include and --exclude.

This module has no side effects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.errors import UsageError

_LINE: Final = re.compile(r"(\S+)\s+slots=(\d{1,4})")
_FILTER: Final = re.compile(r"([^\s:@]+)(?::(\d{1,4}(?:,\d{1,4})*))?")


@dataclass(frozen=True)
class DeepspeedHosts:
    """The hosts of a deepspeed command with the indices of their GPUs."""

    slots: dict[str, tuple[int, ...]]
    chosen: bool = False  # whether some GPUs of a host are left out


def hosts_of(options: Mapping[str, str], hostfile: str, place: str) -> DeepspeedHosts:
    """Return the hosts of a hostfile that --include and --exclude select.

    `hostfile` is the text of the file at `place`, or empty if there is no hostfile. Raises UsageError, which quotes the
    line or the filter, if a line or a filter can't be parsed.
    """
    slots = _hosts(hostfile, place)
    include = options.get("include") or options.get("i") or ""
    exclude = options.get("exclude") or options.get("e") or ""
    if include and exclude:
        raise UsageError("deepspeed takes --include or --exclude, and not both", "leave one of them out")
    if not slots and include:
        chosen = _filter(include, "--include")
        unknown = [host for host, gpus in chosen.items() if not gpus]
        if unknown:
            raise UsageError(f"--include {unknown[0]} names no GPUs, and there is no hostfile", "as in: localhost:0,1")
        return DeepspeedHosts({host: tuple(gpus) for host, gpus in chosen.items()}, chosen=True)
    everything = dict(slots)
    for host, gpus in _filter(include or exclude, "--include" if include else "--exclude").items():
        if host not in everything or not set(gpus) <= set(everything[host]):
            where = f"not among the slots of {place}" if place else "in no hostfile"
            raise UsageError(
                f"deepspeed's filter names GPUs of {host} that are {where}", "as in: worker-0@worker-1:0,2"
            )
    if include:
        wanted = _filter(include, "--include")
        slots = {host: tuple(wanted[host]) or everything[host] for host in everything if host in wanted}
    elif exclude:
        without = _filter(exclude, "--exclude")
        left = {
            host: () if host in without and not without[host] else tuple(set(gpus) - set(without.get(host, ())))
            for host, gpus in everything.items()
        }
        slots = {host: tuple(sorted(gpus)) for host, gpus in left.items() if gpus}
    return DeepspeedHosts(slots, chosen=any(slots[host] != everything[host] for host in slots))


def _hosts(text: str, place: str) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.partition("#")[0].strip()
        if not bare:
            continue
        match = _LINE.fullmatch(bare)
        if match is None or match[1] in found or not int(match[2]):
            raise UsageError(f"{place}:{number}: '{bare[:60]}' is not a line of a hostfile", "as in: worker-1 slots=4")
        found[match[1]] = tuple(range(int(match[2])))
    return found


def _filter(text: str, option: str) -> dict[str, list[int]]:
    """Return the hosts of a filter such as `worker-0@worker-1:0,2`. An empty list means all GPUs of the host."""
    found: dict[str, list[int]] = {}
    for part in text.split("@") if text else []:
        match = _FILTER.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"{option} {text} can't be read", "as in: worker-0@worker-1:0,2")
        found[match[1]] = sorted({int(each) for each in match[2].split(",")}) if match[2] else []
    return found

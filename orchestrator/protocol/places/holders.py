"""Describes in sentences who holds the places (GPUs or slots) of a host.

Both the host and the machines that query it use this module.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.protocol.places.devices import is_gpu
from orchestrator.protocol.places.tickets import Ticket

Holder = Mapping[str, Any]  # keys: uid, user, run, since; program if no run holds the place


def kind(names: Iterable[str]) -> str:
    """Return the word for the kind of these places: GPUs or slots."""
    return "GPUs" if is_gpu(next(iter(names), "")) else "slots"


def why_taken(places: Mapping[str, Holder | None], count: int) -> str:
    """Return a sentence on who holds which places of a host that has fewer than `count` free places."""
    by_holder: dict[str, list[str]] = {}
    for name, holder in places.items():
        if holder is not None:
            by_holder.setdefault(_holder_in_words(holder), []).append(name)
    free = len(places) - sum(map(len, by_holder.values()))
    told = "; ".join(f"{', '.join(theirs)} {holder}" for holder, theirs in by_holder.items())
    return f"{_free_words(free, len(places), kind(places))}, {count} {'is' if count == 1 else 'are'} needed: {told}"


def _free_words(free: int, there: int, kind: str) -> str:
    if there == 1:
        return f"its only {kind.rstrip('s')} is taken"
    if not free:
        return f"none of the {there} {kind} is free"
    return f"only {free} of {there} {kind} {'is' if free == 1 else 'are'} free"


def why_reserved(places: Mapping[str, Holder | None], free: int, first: Iterable[Ticket]) -> str:
    """Return a sentence on whose earlier tickets reserve the free places of a host."""
    told = ", ".join(f"run {each.run} of uid {each.uid} ({each.needs})" for each in first)
    return f"{free} of {len(places)} {kind(places)} are free, and others have waited longer for them: {told}"


def _holder_in_words(holder: Holder) -> str:
    """Return `held by user bob (uid 1001), run NAME since ...`. The kernel reports the user; the other facts come
    from that user's own record.
    """
    uid, run, since = holder["uid"], holder["run"], holder["since"]
    who = "a user whom its kernel does not tell" if uid is None else f"user {holder['user'] or '?'} (uid {uid})"
    if holder.get("program"):
        return f"used by {holder['program']}, of {who}: a program of no run of orch"
    if run is None:
        return f"held by {who}, who names no run"
    return f"held by {who}, run {run} since {time.strftime('%Y-%m-%d %H:%M', time.localtime(since))}"

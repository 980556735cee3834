"""Finds the rank that has not entered the collective in which other ranks wait. It is found in the dumps of NCCL's
flight recorders. The module does no I/O.

`Groups` maps each process group of a rank to its state (see orchestrator.node.launcher.flight_recorder). A rank that
waits in a collective of another group is named only if no other rank is to blame, because such a rank may wait for the
missing rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.protocol.hostlist import in_words
from orchestrator.protocol.rank_reports import ProcessGroup

DEFAULT_GROUP = "default_pg"  # the description of the group of all ranks
MOST_NAMED = 8

Groups = Mapping[str, ProcessGroup]


@dataclass(frozen=True)
class Missing:
    """A rank for which other ranks wait, and a sentence that explains this."""

    rank: int
    words: str


@dataclass(frozen=True)
class _Wait:
    rank: int
    number: int
    operation: str


def missing_rank(recorders: Mapping[int, Groups]) -> Missing | None:
    """Return the rank for which the other ranks wait in a collective. Return None if the flight recorders do not show
    such a rank.

    recorders: for each rank, its process groups by name; empty if the rank left no dump.
    """
    groups = sorted(_by_group(recorders).items())
    found = [each for name, known in groups for each in _missing_in(name, known, recorders)]
    waits = {rank for rank, groups in recorders.items() if any(group.waits for group in groups.values())}
    return min(found, key=lambda each: (each.rank in waits, each.rank), default=None)


def _by_group(recorders: Mapping[int, Groups]) -> dict[str, dict[int, ProcessGroup]]:
    """Return a dict from the name of each process group to another dict, which maps each rank to its record of this
    group.
    """
    found: dict[str, dict[int, ProcessGroup]] = {}
    for rank, groups in recorders.items():
        for name, group in groups.items():
            found.setdefault(name, {})[rank] = group
    return found


def _missing_in(name: str, known: dict[int, ProcessGroup], recorders: Mapping[int, Groups]) -> list[Missing]:
    """Return the ranks of a group that have not entered the collective in which the other ranks wait, or that have
    entered a different collective.
    """
    waiting = [_Wait(rank, *group.waits) for rank, group in sorted(known.items()) if group.waits]
    if not waiting:
        return []
    if any(group.desc == DEFAULT_GROUP for group in known.values()):  # every rank is a member of the default group
        known.update({rank: ProcessGroup() for rank, groups in recorders.items() if groups and rank not in known})
    first = min(wait.number for wait in waiting)
    late = [rank for rank, group in known.items() if group.entered < first]
    there = [wait for wait in waiting if wait.number == first]
    if late:
        wait = f"{_ranks(there)} of process group {name} wait{'' if len(there) > 1 else 's'}"
        words = f"it never entered {there[0].operation} {first}, in which {wait}"
        return [Missing(rank, words) for rank in late]
    return _mismatch(there, name)


def _mismatch(there: list[_Wait], name: str) -> list[Missing]:
    """Return the ranks that call a different collective than most ranks; an empty list if all call the same
    collective.
    """
    counts = Counter(wait.operation for wait in there)
    usual = max(counts, key=lambda operation: (counts[operation], operation == there[0].operation))
    others = _ranks([wait for wait in there if wait.operation == usual])
    return [
        Missing(
            wait.rank,
            f"it called {wait.operation} as collective {wait.number} of process group {name}, "
            f"where {others} called {usual}",
        )
        for wait in there
        if wait.operation != usual
    ]


def _ranks(waits: list[_Wait]) -> str:
    names = [str(wait.rank) for wait in waits[:MOST_NAMED]]
    more = [f"{len(waits) - MOST_NAMED} others"] if len(waits) > MOST_NAMED else []
    return f"rank{'s' if len(waits) > 1 else ''} {in_words([*names, *more])}"

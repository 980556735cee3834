"""Decides success by the exits of all ranks of an attempt, even if processes of orch have died since. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.protocol.events import EventKind

Event = Mapping[str, Any]


def exited_well(report: Event) -> bool:
    """Tell whether a rank has exited with 0, was not stopped by orch, and has saved its last checkpoint."""
    return report.get("code") == 0 and not any(report.get(name) for name in ("signal", "stopped", "unsaved"))


def successful_attempt(by_node: Mapping[int, Iterable[Event]], *, rank0_done: bool) -> int | None:
    """Return the newest attempt if every rank of it has exited well, else None.

    `by_node` has the events of every node of the run. `rank0_done` tells whether rank 0's marker of that attempt
    exists. The leader's `gang_ended` is not needed. The death of an agent after the last exit does not change the
    success.
    """
    goes = [event for event in by_node.get(0, ()) if event.get("kind") == EventKind.GO]
    attempt = goes[-1].get("attempt") if goes else None
    if not rank0_done or type(attempt) is not int:
        return None
    every = (_all_exited_well(node, events, attempt) for node, events in by_node.items())
    return attempt if all(every) else None


def _all_exited_well(node: int, events: Iterable[Event], attempt: int) -> bool:
    """Tell whether all processes that the node's launcher started for the attempt have exited well.

    Slurm sends TERM to the ranks and to their agent alike, so an exit counts only before the agent's first signal.
    """
    processes: range | None = None
    ended: set[Any] = set()
    for event in events:
        kind, is_of_attempt = event.get("kind"), event.get("attempt") == attempt
        if kind == EventKind.STARTED and is_of_attempt:
            processes = _processes(event)
        elif kind == EventKind.SIGNAL and processes is not None and not ended >= set(processes):
            return False
        elif kind == EventKind.RANK_EXIT and is_of_attempt:
            if not exited_well(event):
                return False
            ended.add(event.get("rank"))
    if node == 0:
        ended.add(0)  # the agent writes rank 0's marker before it records the exit, and may die in between
    return processes is not None and ended >= set(processes)


def _processes(started: Event) -> range | None:
    """Return the ranks that have a process of their own, because torchrun has one process for all ranks of its node.

    None if the event is damaged.
    """
    ranks, count = started.get("ranks"), started.get("processes")
    if not isinstance(ranks, (list, tuple)) or [type(rank) for rank in ranks] != [int, int]:
        return None
    first, last = ranks
    return range(first, last if type(count) is not int else min(last, first + count))

"""Decides whether a run has succeeded, by the exits of all ranks of an attempt. It does not matter whether orch's own
processes have died after these exits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchestrator.outcome.ends import was_stopped
from orchestrator.protocol.events import Event, Go, RankExit, Started, of
from orchestrator.protocol.rank_reports import RankEnd


def exited_well(end: RankEnd) -> bool:
    """Return whether a rank exited with 0, was not stopped by orch, and saved its last checkpoint."""
    return end.code == 0 and not end.signal and not was_stopped(end) and not end.unsaved


def has_succeeded(by_node: Mapping[int, Iterable[Event]], marked: object) -> bool:
    """Return whether every rank of the newest attempt exited well, and rank 0 recorded that it has finished this
    attempt. `marked` is the number of the attempt that rank 0 recorded.
    """
    attempt = successful_attempt(by_node, rank0_done=True)
    return attempt is not None and attempt == marked


def successful_attempt(by_node: Mapping[int, Iterable[Event]], *, rank0_done: bool) -> int | None:
    """Return the number of the newest attempt if all its ranks exited well, else None.

    `by_node` has the events of every node of the run. `rank0_done` tells whether rank 0 has written the file that shows
    that it has finished. The leader's event `GangEnded` is not needed, so an agent that dies after the last exit does
    not change the result.
    """
    goes = of(by_node.get(0, ()), Go)
    if not rank0_done or not goes:
        return None
    attempt = goes[-1].attempt
    every = (_all_exited_well(node, events, attempt) for node, events in by_node.items())
    return attempt if all(every) else None


def _all_exited_well(node: int, events: Iterable[Event], attempt: int) -> bool:
    """Return whether all processes that the node's launcher started for the attempt exited well."""
    processes: range | None = None
    ended: set[int] = set()
    for event in events:
        if isinstance(event, Started) and event.attempt == attempt:
            first, last = event.ranks  # torchrun is one process for all ranks of its node
            processes = range(first, last if event.processes is None else min(last, first + event.processes))
        elif isinstance(event, RankExit) and event.attempt == attempt:
            if not exited_well(event):
                return False
            ended.add(event.rank)
    if node == 0:
        ended.add(0)  # the agent writes rank 0's marker before it records the exit, and may die in between
    return processes is not None and ended >= set(processes)

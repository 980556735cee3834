"""Restarts of a run's agents: which events count, and whether another start follows. Pure.

An attempt is one start of the gang by its leader. A start is one start of the agents themselves. If a node is lost, the
leader can't continue, so the supervisor (or the scheduler, by a requeue) starts new agents. Their first attempt is
numbered after the last attempt of the earlier agents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.protocol import restart
from orchestrator.protocol.events import AgentStarted, Clock, EventKind, StartingAgain, of
from orchestrator.protocol.events import Event as TypedEvent
from orchestrator.protocol.restart import Progress, Refusal, Restarter, progress_of
from orchestrator.runs.state import Event

SAY_THE_STEP: Final = (EventKind.ATTEMPT_FAILED, EventKind.GANG_ENDED, EventKind.COLLECTED, EventKind.RELAUNCH)
PASSES: Final = (
    EventKind.FOUND_LOST,
    EventKind.CLEANED_UP,
)  # events of the submitting machine about one start, not about the run

NEVER_AGAIN: Final = (EventKind.CANCEL, EventKind.SUBMIT_FAILED, EventKind.FOUND_LOST)  # no other start follows these


@dataclass(frozen=True)
class Relaunch:
    """Another start of a run's agents: its number, its first attempt, and the reason."""

    start: int
    attempt: int
    cause: str
    reason: str
    step: int | None = None  # step of the newest checkpoint at the decision
    beat: int | None = None  # step of the newest heartbeat, if there is no checkpoint
    saved: float | None = None  # and the time of the last write to a file


def correct_clock_skew(events: list[TypedEvent]) -> list[TypedEvent]:
    """Return the events with the nodes' times corrected to the submitting machine's clock, by the events `Clock`."""
    ahead: dict[tuple[int | None, int], float] = {(each.of, each.start): each.ahead for each in of(events, Clock)}
    if not ahead:
        return events
    start: dict[int | None, int] = {}
    timed = []
    for event in events:
        if isinstance(event, StartingAgain | AgentStarted) and _opens(event):
            start[event.node] = event.start
        off = ahead.get((event.node, start.get(event.node, -1)))
        timed.append(event if off is None else event.timed(round(event.time - off, 3)))
    return timed


def newest_start(events: Iterable[Event]) -> list[Event]:
    """Return the events that count now: those of the newest start, and the submitting machine's about the run."""
    events = list(events)
    start = max((_int(event.get("start")) or 0 for event in events if _opens(event)), default=0)
    if start == 0:
        return events
    now: dict[Any, bool] = {None: not any(_opens(event) and "node" not in event for event in events)}
    kept = []
    for event in events:
        node = event.get("node")
        if _opens(event):
            now[node] = (_int(event.get("start")) or 0) == start
        if now.get(node) or (node is None and event.get("kind") not in PASSES):
            kept.append(event)
    return kept


def _opens(event: Event) -> bool:
    return event.get("kind") == (EventKind.RELAUNCH if "node" not in event else EventKind.AGENT_STARTED)


def pending_start(events: Iterable[Event]) -> Relaunch | None:
    """Return the newest start that the submitting machine decided, or None before the first."""
    found = [event for event in events if event.get("kind") == EventKind.RELAUNCH and "node" not in event]
    if not found:
        return None
    last = found[-1]
    return Relaunch(
        _int(last.get("start")) or 0,
        _int(last.get("attempt")) or 0,
        str(last.get("cause", "infra")),
        str(last.get("reason", "")),
        _int(last.get("step")),
    )


def last_attempt(events: Iterable[Event]) -> int:
    """Return the highest attempt number of the run."""
    return max((_int(event.get("attempt")) or 0 for event in events), default=0)


def newest_saved(events: Iterable[Event]) -> Progress:
    """Return the progress of the newest recorded checkpoint."""
    return max((progress_of(event) for event in events if event.get("kind") in SAY_THE_STEP), default=Progress())


def next_start(
    retry: Mapping[str, Any], events: Iterable[Event], cause: str, reason: str, *, lost: bool = False
) -> Relaunch | str | None:
    """Return the start that follows an end with this cause. None if none follows; a sentence if it would be pointless.

    `retry` has the budgets by cause, from which the leaders' restarts are subtracted too. A run that has never begun is
    restarted only if a node was `lost`, because another start would cure nothing else.
    """
    events = list(events)
    began = lost or any(event.get("kind") in (EventKind.GO, EventKind.LOST_NODE) for event in events)
    ended = any(event.get("kind") in NEVER_AGAIN for event in events)
    saved = newest_saved(events)
    stalled = restart.stalled(restart.progress_of_starts(events), saved)
    no = restart.refusal(Restarter.SUPERVISOR, cause, retry, restart.times_used(events, cause), stalled)
    if not began or ended or (no is not None and no is not Refusal.NO_PROGRESS):
        return None
    if no is Refusal.NO_PROGRESS:
        return f"{stalled} starts in a row ended without a new checkpoint; the last: {reason}"
    before = pending_start(events)
    number = (before.start if before else 0) + 1
    return Relaunch(number, last_attempt(events) + 1, cause, reason, **saved.to_event())


def budget_left(retry: Mapping[str, Any], events: Iterable[Event]) -> dict[str, int | None]:
    """Return the remaining budgets for the next leader."""
    return restart.budget_left(retry, events)


def _int(value: Any) -> int | None:
    return value if type(value) is int else None

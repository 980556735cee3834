"""A run whose agents are started again: which events count, and whether there is to be another start. Pure.

An attempt is one start of the gang by its leader. A start is one start of the agents themselves: after a node was
lost the leader can't go on, so the supervisor (or the scheduler, by a requeue) starts agents anew, whose first attempt
follows the last one of those before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.protocol import restart
from orchestrator.protocol.events import EventKind
from orchestrator.protocol.restart import Progress, Refusal, Restarter, progress_of
from orchestrator.runs.state import Event

SAY_THE_STEP: Final = (EventKind.ATTEMPT_FAILED, EventKind.GANG_ENDED, EventKind.COLLECTED, EventKind.RELAUNCH)
PASSES: Final = (
    EventKind.FOUND_LOST,
    EventKind.CLEANED_UP,
)  # of the controlling side: of one start, not of the run

NEVER_AGAIN: Final = (EventKind.CANCEL, EventKind.SUBMIT_FAILED, EventKind.FOUND_LOST)  # no other start follows these


@dataclass(frozen=True)
class Relaunch:
    """One more start of a run's agents: its number, its first attempt, and why."""

    start: int
    attempt: int
    cause: str
    reason: str
    step: int | None = None  # the newest checkpoint's, when that was decided
    beat: int | None = None  # without one, the newest heartbeat's
    saved: float | None = None  # and when a file was written last


def correct_clock_skew(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events; those of nodes whose clocks are off (`clock` says how far) timed by the controlling side's."""
    ahead = {
        (each.get("of"), each.get("start")): each.get("ahead") for each in events if each.get("kind") == EventKind.CLOCK
    }
    if not ahead:
        return events
    start: dict[Any, Any] = {}
    timed = []
    for event in events:
        node, time = event.get("node"), event.get("time")
        if _opens(event):
            start[node] = event.get("start")
        off = ahead.get((node, start.get(node)))
        if isinstance(off, int | float) and isinstance(time, int | float):
            event = {**event, "time": round(time - off, 3)}  # noqa: PLW2901
        timed.append(event)
    return timed


def newest_start(events: Iterable[Event]) -> list[Event]:
    """Return the events that count now: each node's of the newest start, and the controlling side's about the run."""
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
    """Return the newest start that the controlling side has decided on; None before the first."""
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
    """Return the highest number that any attempt of the run has had."""
    return max((_int(event.get("attempt")) or 0 for event in events), default=0)


def newest_saved(events: Iterable[Event]) -> Progress:
    """Return the newest checkpoint that anybody has recorded."""
    return max((progress_of(event) for event in events if event.get("kind") in SAY_THE_STEP), default=Progress())


def next_start(
    retry: Mapping[str, Any], events: Iterable[Event], cause: str, reason: str, *, lost: bool = False
) -> Relaunch | str | None:
    """Return the start that follows an end with this cause; None when there is none, a sentence when it has no point.

    `retry` holds the budgets by cause; what the leaders have restarted counts against them too. A run that has never
    begun is started again only where a node was lost (`lost`): another start would mend nothing else.
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
    """Return the budgets that the next leader gets: what was used before is gone."""
    return restart.budget_left(retry, events)


def _int(value: Any) -> int | None:
    return value if type(value) is int else None

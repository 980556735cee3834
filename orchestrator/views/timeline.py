"""The timeline of a run: its attempts and phases, in wall-clock time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.protocol.events import AgentStarted, Event, Joined, Submitted, of
from orchestrator.runs.state import RunState, RunStatus


class SpanKind(StrEnum):
    """The kind of a span of time."""

    PHASE = "phase"
    ATTEMPT = "attempt"


@dataclass(frozen=True)
class Span:
    """One phase or attempt, from `start` to `end` in wall-clock time. `end` is None if it has not ended."""

    kind: SpanKind
    name: str
    start: float
    end: float | None = None
    attempt: int | None = None
    note: str = ""  # how an attempt ended
    failed: bool = False  # an attempt that failed, or had to be repeated


@dataclass(frozen=True)
class Timeline:
    """All spans of a run, in order. `end` is the end of the run, or now if the run has not ended."""

    start: float
    end: float
    spans: tuple[Span, ...] = ()


def timeline_of(state: RunState, events: Iterable[Event], now: float) -> Timeline:
    """Return the phases and the attempts of a run."""
    end = (state.ended or now) if state.is_final else now
    spans = (*_phases(state, list(events)), *_attempts(state))
    return Timeline(state.created or min((span.start for span in spans), default=end), end, spans)


def _phases(state: RunState, events: Sequence[Event]) -> list[Span]:
    first = [event for event in events if event.node == 0]
    begun = [each for each in state.attempts if each.began is not None]
    joined = [event.time for event in of(first, Joined)]
    went = begun[0].began if begun else None
    marks: list[tuple[str, float | None, int | None]] = [
        ("submitting", state.created or None, None),
        ("queued", _first(of(events, Submitted)), None),
        ("joining", _first(of(first, AgentStarted)), None),
        ("starting", max((at for at in joined if went is None or at <= went), default=None), None),
    ]
    for each in begun:
        marks += [("running", each.began, each.number), ("restarting", each.ended, each.number + 1)]
    if begun and marks[-1][1] is not None and state.restarts <= begun[-1].number:
        marks[-1] = ("ending", marks[-1][1], None)
    known = [(name, at, attempt) for name, at, attempt in marks if at is not None]
    ends = [*(at for _, at, _ in known), state.ended if state.is_final else None][1:]
    return [
        # `end` may be before `at`, because the clocks of two hosts differ
        Span(SpanKind.PHASE, name, at, None if end is None else max(at, end), attempt)
        for (name, at, attempt), end in zip(known, ends, strict=True)
    ]


def _attempts(state: RunState) -> list[Span]:
    newest = max((each.number for each in state.attempts), default=0)
    has_failed = state.state is RunStatus.FAILED
    return [
        Span(
            SpanKind.ATTEMPT, f"attempt {each.number}", each.began, each.ended or state.ended, each.number, each.end,
            failed=has_failed if each.number == newest else each.ended is not None,
        )
        for each in state.attempts
        if each.began is not None
    ]  # fmt: skip


def _first(events: Sequence[Event]) -> float | None:
    return events[0].time if events else None

"""Derives a run's attempts from its events: when each began and ended, why it ended, and its checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TypeVar

from orchestrator.outcome.sentences import culprit_in_words
from orchestrator.outcome.verdict import Outcome
from orchestrator.protocol.events import (
    AttemptFailed,
    Event,
    FirstStepsSeen,
    GangEnded,
    Go,
    OfAttempt,
    Replaced,
    Restart,
    StartingAgain,
    of,
)
from orchestrator.runs.state import AttemptSummary

_Found = TypeVar("_Found", bound=OfAttempt)
End = AttemptFailed | GangEnded | StartingAgain | Restart


def attempts_of(events: Iterable[Event]) -> tuple[AttemptSummary, ...]:
    """Return the attempts in order. `began` is None for an attempt whose ranks were never started."""
    every = of(events, OfAttempt)
    spares: dict[int, list[str]] = {}  # sentences about spares, by the start that uses the spares
    for event in of(events, Replaced):
        spares.setdefault(event.start, []).append(f"{event.by} took the place of {event.host}")
    begun, first, failed, ended = (
        _by_attempt(every, Go), _by_attempt(every, FirstStepsSeen), _by_attempt(every, AttemptFailed),
        _by_attempt(every, GangEnded),
    )  # fmt: skip
    again: dict[int, StartingAgain | Restart] = {**_by_attempt(every, StartingAgain), **_by_attempt(every, Restart)}
    numbers = sorted({*begun, *again, *({0} if again else ())})
    return tuple(
        _attempt(
            number, begun.get(number), first.get(number), [failed.get(number), ended.get(number), again.get(after)],
            spares.get(next_start.start, []) if isinstance(next_start := again.get(after), StartingAgain) else [],
        )
        for number, after in pairwise([*numbers, -1])
    )  # fmt: skip


def _by_attempt(events: Iterable[OfAttempt], cls: type[_Found]) -> dict[int, _Found]:
    return {event.attempt: event for event in events if isinstance(event, cls)}


def _attempt(
    number: int, begun: Go | None, first: FirstStepsSeen | None, ends: Iterable[End | None], spares: list[str]
) -> AttemptSummary:
    """Build an attempt. `ends` are the events about its end, the most specific first.

    `spares` are sentences about spare machines that replaced lost machines.
    """
    known = [event for event in ends if event is not None]
    offered = begun.resume_from or None if begun is not None else None
    return AttemptSummary(
        number,
        begun.time if begun is not None else None,
        known[0].time if known else None,
        "; ".join(filter(None, [_why(known), *spares])),
        offered if first is not None and continues(first) else None,
        offered,
        first.steps[0] if first is not None and first.steps is not None else None,
    )


def continues(first: FirstStepsSeen) -> bool:
    """Return whether the program resumed from the offered checkpoint. `first` describes the program's first steps.

    After a resume, the first checkpoint that the program saves has a greater step than the offered checkpoint. If the
    program reports steps, its first step is compared with the distance between its first two steps. For example, a
    program that reports every tenth step begins with 10 and 20, but after a resume from step 50 it begins with 60 and
    70.
    """
    if first.read or first.loaded is not None:
        return True
    if first.saved is not None:
        return first.offered_step is not None and first.saved > first.offered_step
    if first.steps is None:
        return False
    one, two = first.steps
    return one > two - one and (first.offered_step is None or one >= first.offered_step)


def _why(ends: list[End]) -> str:
    """Return the reason for which an attempt ended. Without a recorded reason, return its outcome."""
    for event in ends:
        if isinstance(event, AttemptFailed):
            return culprit_in_words(event.culprit)
    reasons = [event.reason for event in ends if isinstance(event, (GangEnded, StartingAgain)) and event.reason]
    outcomes = [event.outcome for event in ends if isinstance(event, GangEnded) and event.outcome != Outcome.FAILED]
    return next(iter([*reasons, *outcomes]), "")

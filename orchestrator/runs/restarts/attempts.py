"""The attempts of a run, from its events: when each began and ended, why it ended, what it was resumed from. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from orchestrator.protocol.events import EventKind
from orchestrator.runs.state import Attempt, Event, Outcome
from orchestrator.runs.verdict import culprit_in_words

_KINDS = (EventKind.GO, EventKind.ATTEMPT_FAILED, EventKind.GANG_ENDED, EventKind.RELAUNCH, EventKind.RESTART)


def attempts_of(events: Iterable[Event]) -> tuple[Attempt, ...]:
    """Return the attempts in order; one whose ranks were never started has no beginning."""
    found: dict[str, dict[int, Event]] = {kind: {} for kind in _KINDS}
    for event in events:
        if event["kind"] in found:
            found[event["kind"]][event["attempt"]] = event
    again = {**found[EventKind.RELAUNCH], **found[EventKind.RESTART]}
    begun = found[EventKind.GO]
    numbers = sorted({*begun, *again, *({0} if again else ())})
    return tuple(
        _attempt(number, begun.get(number, {}), [found[EventKind.ATTEMPT_FAILED].get(number),
                 found[EventKind.GANG_ENDED].get(number), again.get(after)])
        for number, after in pairwise([*numbers, -1])
    )  # fmt: skip


def _attempt(number: int, begun: Event, ends: list[Event | None]) -> Attempt:
    """Return one attempt; `ends` tell of its end, those first that were nearest to it."""
    known = [event for event in ends if event is not None]
    return Attempt(
        number,
        begun.get("time"),
        known[0].get("time") if known else None,
        _why(known),
        str(name) if (name := begun.get("resume_from")) else None,
    )


def _why(ends: list[Event]) -> str:
    """Return why an attempt ended; where nobody says, how."""
    culprits = (event["culprit"] for event in ends if event["kind"] == EventKind.ATTEMPT_FAILED)
    said = [*map(culprit_in_words, culprits), *(str(event.get("reason") or "") for event in ends)]
    outcomes = (str(event["outcome"]) for event in ends if event["kind"] == EventKind.GANG_ENDED)
    return next(filter(None, said), "") or next((each for each in outcomes if each != Outcome.FAILED), "")

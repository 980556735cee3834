"""The attempts of a run, from its events: begin and end, why each ended, and its checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from orchestrator.outcome.sentences import culprit_in_words
from orchestrator.protocol.events import EventKind
from orchestrator.runs.state import Attempt, Event, Outcome

_KINDS = (
    EventKind.GO, EventKind.FIRST_STEPS, EventKind.ATTEMPT_FAILED, EventKind.GANG_ENDED, EventKind.RELAUNCH,
    EventKind.RESTART,
)  # fmt: skip


def attempts_of(events: Iterable[Event]) -> tuple[Attempt, ...]:
    """Return the attempts in order. An attempt whose ranks were never started has no `began`."""
    found: dict[str, dict[int, Event]] = {kind: {} for kind in _KINDS}
    spares: dict[object, list[str]] = {}  # by the start that uses them
    for event in events:
        if event["kind"] == EventKind.REPLACED:
            spares.setdefault(event["start"], []).append(f"{event['by']} took the place of {event['host']}")
        if event["kind"] in found and type(event.get("attempt")) is int:
            found[event["kind"]][event["attempt"]] = event
    again = {**found[EventKind.RELAUNCH], **found[EventKind.RESTART]}
    begun = found[EventKind.GO]
    numbers = sorted({*begun, *again, *({0} if again else ())})
    first, failed = found[EventKind.FIRST_STEPS], found[EventKind.ATTEMPT_FAILED]
    ended = found[EventKind.GANG_ENDED]
    return tuple(
        _attempt(
            number, begun.get(number, {}), first.get(number, {}),
            [failed.get(number), ended.get(number), again.get(after)],
            spares.get(again.get(after, {}).get("start"), []),
        )
        for number, after in pairwise([*numbers, -1])
    )  # fmt: skip


def _attempt(number: int, begun: Event, first: Event, ends: list[Event | None], spares: list[str]) -> Attempt:
    """Return one attempt. `ends` are events about its end, the most specific first; `spares` what followed from it."""
    known = [event for event in ends if event is not None]
    offered = str(name) if (name := begun.get("resume_from")) else None
    steps = first.get("steps")
    return Attempt(
        number,
        begun.get("time"),
        known[0].get("time") if known else None,
        "; ".join(filter(None, [_why(known), *spares])),
        offered if continues(first) else None,
        offered,
        steps[0] if isinstance(steps, list | tuple) and steps and type(steps[0]) is int else None,
    )


def continues(first: Event) -> bool:
    """Tell whether the program resumed from the checkpoint that it was offered, by the event of its first steps.

    The first checkpoint that a resumed program saves has a greater step than the offered one. If the program reports
    steps, the distance between the first two counts. For example, a program that reports every tenth step begins with
    10 and 20, and a resumed program with 60 and 70.
    """
    if type(first.get("loaded")) is int:
        return True
    steps, saved, offered = first.get("steps"), first.get("saved"), first.get("offered_step")
    if type(saved) is int:
        return type(offered) is int and saved > offered
    if not isinstance(steps, list | tuple) or [type(step) for step in steps] != [int, int]:
        return False
    return steps[0] > steps[1] - steps[0] and (type(offered) is not int or steps[0] >= offered)


def _why(ends: list[Event]) -> str:
    """Return why an attempt ended or, without a reason, how."""
    culprits = (event["culprit"] for event in ends if event["kind"] == EventKind.ATTEMPT_FAILED)
    said = [*map(culprit_in_words, culprits), *(str(event.get("reason") or "") for event in ends)]
    outcomes = (str(event["outcome"]) for event in ends if event["kind"] == EventKind.GANG_ENDED)
    return next(filter(None, said), "") or next((each for each in outcomes if each != Outcome.FAILED), "")

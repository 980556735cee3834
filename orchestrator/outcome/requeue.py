"""Whether a job of a scheduler is started again by its own agents, and which starts have no point.

Each node's agent judges its own end. If several nodes ask for another start, the first one counts: the leader or, if
node 0 was lost, whoever noticed the loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Callable

from orchestrator.outcome import restart
from orchestrator.outcome.restart import Budgets, Refusal, Restarter
from orchestrator.outcome.verdict import Cause, Event, cause_of_event
from orchestrator.protocol.events import EventKind
from orchestrator.protocol.progress import Progress, progress_of

PREEMPTION_SECONDS = 5.0  # between the two signals of a preemption
_ASKED_TO_STOP = {Cause.PREEMPTED: "{} took its nodes away (preempted)", Cause.TIMEOUT: "its time limit was near"}


def start_after(
    events: Sequence[Event], retry: Budgets, title: str, *, asks: bool, has_whole_limit: bool = True
) -> tuple[Cause, str] | Refusal | None:
    """Return the cause and the reason of the start that an agent asks for at its end; None if it asks for none.

    NO_PROGRESS if the start ended at its time limit, had the whole limit, and has gained nothing by then. `events` are
    those of this agent's start, and `retry` has the budgets that are left for this start. A start without ranks is
    repeated only if the agent's exit code `asks` for that. `title` is the scheduler's name.
    """
    ends = [event for event in events if event.get("kind") in (EventKind.GANG_ENDED, EventKind.GAVE_UP)]
    if not ends:
        return None
    began = any(event.get("kind") == EventKind.STARTED for event in events)
    cause = cause_of_event(ends[-1])
    if cause is Cause.PREEMPTED and is_near_limit(events, title):
        cause = Cause.TIMEOUT
    used = restart.times_used([event for event in events if event.get("kind") == EventKind.RESTART], cause)
    begun = next(iter(restart.progress_of_starts(events)), Progress())
    stalled = restart.stalled([begun], progress_of(ends[-1])) if began and has_whole_limit else 0
    refusal = restart.refusal(Restarter.SCHEDULER, cause, retry, used, stalled)
    if refusal is not None or not (began or asks):
        return refusal if refusal is Refusal.NO_PROGRESS else None
    return cause, str(ends[-1].get("reason") or _ASKED_TO_STOP.get(cause, "").format(title))


def is_near_limit(events: Iterable[Event], title: str) -> bool:
    """Tell whether this start was asked to stop because of its time limit.

    Slurm can send SIGUSR2 up to a minute early, so a preemption may come at
    the same moment. Then SIGTERM follows at once. Before a time limit it comes much later.
    """
    events = list(events)
    warned = _time_of(events, lambda name: restart.is_limit_signal(name, title))
    stopped = _time_of(events, lambda name: name == "SIGTERM")
    return warned is not None and not (stopped is not None and 0 <= stopped - warned < PREEMPTION_SECONDS)


def _time_of(events: Iterable[Event], is_it: Callable[[str], bool]) -> float | None:
    """Return when the agent got such a signal first; 0 if its event has no time, and None if it got no such signal."""
    found = next(
        (event for event in events if event.get("kind") == EventKind.SIGNAL and is_it(str(event.get("name")))), None
    )
    at = found and found.get("time")
    return None if found is None else float(at) if isinstance(at, (int, float)) else 0.0


def forbidden_start(retry: Budgets, events: Iterable[Event], title: str) -> str:
    """Return why the scheduler should not have started the job again by itself; "" if the job's `retry` allows it."""
    used = restart.times_used(events, Cause.PREEMPTED)
    refusal = restart.refusal(Restarter.SCHEDULER, Cause.PREEMPTED, retry, used)
    if Cause.PREEMPTED not in retry or refusal is not Refusal.BUDGET_SPENT:
        return ""
    return (
        f"{title} stopped the job and started it again by itself; this start ended at once, because retry.preempted is "
        f"{retry.get(Cause.PREEMPTED, 0)}"
    )


def overdrawn(retry: Budgets, events: Iterable[Event], word: Event) -> str:
    """Return why a start ends at once whose budget was spent before it was asked for; "" if it was not.

    An agent asks for such a start if the machine of the batch script is lost, because nobody else can end the job.
    """
    cause = str(word.get("cause"))
    budget = retry.get(cause, 0)
    return str(word.get("reason")) if budget is not None and restart.times_used(events, cause) > budget else ""


def without_progress(stalled: int, word: Event, title: str) -> str:
    """Return why a start ends at once after so many without progress; `word` is what the last start asked for."""
    if stalled < restart.WITHOUT_PROGRESS:
        return ""
    if word.get("cause") == Cause.TIMEOUT:
        return f"gave up: {stalled} starts in a row hit the time limit without saving a new checkpoint"
    last = f"the last: {word['reason']}" if word.get("reason") else f"the last was ended by {title}"
    return f"{stalled} starts in a row ended without a new checkpoint; {last}"

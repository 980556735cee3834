"""Decides whether an agent requests another start of its scheduler's job, and which starts must end at once because
they can't succeed.

Each node's agent judges its own end. If several nodes request another start, the first request counts. It comes from
the leader or, if node 0 was lost, from the node that noticed the loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Callable

from orchestrator.outcome import restart
from orchestrator.outcome.restart import Budgets, Refusal, Restarter
from orchestrator.outcome.verdict import Cause, cause_named
from orchestrator.protocol.events import Event, GangEnded, GaveUp, Restart, SignalReceived, Started, of
from orchestrator.protocol.progress import Progress

if TYPE_CHECKING:  # commands that only show runs must not load the messages between nodes
    from orchestrator.protocol.messages import Again

PREEMPTION_SECONDS = 5.0  # seconds between the two signals of a preemption
_ASKED_TO_STOP = {Cause.PREEMPTED: "{} took its nodes away (preempted)", Cause.TIMEOUT: "its time limit was near"}


def start_after(
    events: Sequence[Event], retry: Budgets, title: str, *, asks: bool, has_whole_limit: bool = True
) -> tuple[Cause, str] | Refusal | None:
    """Return (cause, reason) of the start that an agent requests before it exits, or None if it requests no start.

    The result is NO_PROGRESS if the start ended at its time limit, had the whole limit available, and saved no new
    checkpoint. `events` are the events of this agent's start, and `retry` has the budgets that remain. A start that
    began no ranks is repeated only if the agent's exit code requests it (`asks`). `title` is the scheduler's name.
    """
    ends = [event for event in events if isinstance(event, (GangEnded, GaveUp))]
    if not ends:
        return None
    last, began = ends[-1], bool(of(events, Started))
    cause = cause_named(last.cause)
    if cause is Cause.PREEMPTED and is_near_limit(events, title):
        cause = Cause.TIMEOUT
    used = restart.times_used(of(events, Restart), cause)
    begun = next(iter(restart.progress_of_starts(events)), Progress())
    now = restart.progress_of(last) if isinstance(last, GangEnded) else Progress()
    stalled = restart.stalled([begun], now) if began and has_whole_limit else 0
    refusal = restart.refusal(Restarter.SCHEDULER, cause, retry, used, stalled)
    if refusal is not None or not (began or asks):
        return refusal if refusal is Refusal.NO_PROGRESS else None
    return cause, last.reason or _ASKED_TO_STOP.get(cause, "").format(title)


def is_near_limit(events: Iterable[Event], title: str) -> bool:
    """Return whether the scheduler asked this start to stop because of the job's time limit.

    Slurm can send SIGUSR2 up to a minute early, so a preemption may come at the same moment. In that case SIGTERM
    follows at once. At a real time limit, SIGTERM comes much later.
    """
    events = list(events)
    warned = _time_of(events, lambda name: restart.is_limit_signal(name, title))
    stopped = _time_of(events, lambda name: name == "SIGTERM")
    return warned is not None and not (stopped is not None and 0 <= stopped - warned < PREEMPTION_SECONDS)


def _time_of(events: Iterable[Event], is_it: Callable[[str], bool]) -> float | None:
    """Return the time at which the agent first received a signal that satisfies `is_it`; None if it received none."""
    return next((event.time for event in of(events, SignalReceived) if is_it(event.name)), None)


def forbidden_start(retry: Budgets, events: Iterable[Event], title: str) -> str:
    """Return why this start, which the scheduler made by itself after a preemption, must end at once. Return "" if
    the job's `retry` allows the start.
    """
    used = restart.times_used(events, Cause.PREEMPTED)
    refusal = restart.refusal(Restarter.SCHEDULER, Cause.PREEMPTED, retry, used)
    if Cause.PREEMPTED not in retry or refusal is not Refusal.BUDGET_SPENT:
        return ""
    return (
        f"{title} stopped the job and started it again by itself; this start ended at once, because retry.preempted is "
        f"{retry.get(Cause.PREEMPTED, 0)}"
    )


def overdrawn(retry: Budgets, events: Iterable[Event], word: Again) -> str:
    """Return why this start must end at once, because the request for it exceeded the job's `retry` budget; "" if it
    may run.

    `word` is the request, which an agent of the previous start wrote. If the machine that runs the batch script is
    lost, an agent requests a start even without budget, because only a new start can end the job.
    """
    budget = retry.get(word.cause, 0)
    return word.reason if budget is not None and restart.times_used(events, word.cause) > budget else ""


def without_progress(stalled: int, word: Again | None, title: str) -> str:
    """Return why this start must end at once, because too many starts in a row saved no checkpoint; "" if it may run.
    `word` is the request for another start that the last start wrote, if any.
    """
    if stalled < restart.WITHOUT_PROGRESS:
        return ""
    if word is not None and word.cause == Cause.TIMEOUT:
        return f"gave up: {stalled} starts in a row hit the time limit without saving a new checkpoint"
    last = f"the last: {word.reason}" if word is not None and word.reason else f"the last was ended by {title}"
    return f"{stalled} starts in a row ended without a new checkpoint; {last}"

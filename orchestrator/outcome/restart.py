"""The restart policy: after which ends the ranks are started again, by which party, and how often.

Three parties can start ranks again. The leader starts the next attempt if all nodes are still connected. After a lost
node or a preemption, the supervisor starts new agents over SSH. A scheduler requeues its job. Each restart uses up one
of the job's budgets (`retry`), each of which is for one cause of an end. All three parties give up if several starts in
a row save no new checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Optional

from orchestrator.outcome.verdict import Cause
from orchestrator.protocol.events import (
    AgentStarted,
    AttemptFailed,
    Cancel,
    CleanedUp,
    Collected,
    Event,
    FolderLost,
    FoundLost,
    GangEnded,
    Go,
    LostNode,
    OfAttempt,
    Restart,
    StartingAgain,
    SubmitFailed,
    of,
)
from orchestrator.protocol.frozen import Value
from orchestrator.protocol.progress import Progress
from orchestrator.protocol.schedulers import LIMIT_SIGNALS, titled
from orchestrator.protocol.str_enum import StrEnum

Budgets = Mapping[str, Optional[int]]  # number of restarts by cause; None: unlimited

WITHOUT_PROGRESS = 3
"""After this many attempts or starts in a row without a new checkpoint, the ranks are not started again."""
AT_TIME_LIMIT = 1
"""The same limit for starts that ended at their time limit, because the next start would have no more time."""


class Restarter(StrEnum):
    """The party that would start the ranks again."""

    LEADER = "leader"
    """The leader on node 0, which starts another attempt. The agents continue to run."""
    SUPERVISOR = "supervisor"
    """The supervisor, which starts new agents after the old agents could not continue."""
    SCHEDULER = "scheduler"
    """The scheduler, which requeues the job."""


MENDS: Mapping[Restarter, Sequence[Cause]] = {
    Restarter.LEADER: (Cause.USER_ERROR, Cause.INFRA),
    Restarter.SUPERVISOR: (Cause.INFRA, Cause.PREEMPTED),  # a time limit is meant to end a run
    # TIMEOUT means the time limit of the scheduler's job, after which a requeued job can continue
    Restarter.SCHEDULER: (Cause.INFRA, Cause.PREEMPTED, Cause.TIMEOUT),
}
"""Maps each party to the causes of an end after which a restart by this party may help."""


class Refusal(StrEnum):
    """The reason for which no other start follows an end."""

    NOT_MENDED = "not_mended"
    """Another start would end in the same way."""
    BUDGET_SPENT = "budget_spent"
    """The job's `retry` allows no further start for this cause."""
    NO_PROGRESS = "no_progress"
    """The last starts have saved no new checkpoint."""


def refusal(by: Restarter, cause: str, retry: Budgets, used: int, stalled: int = 0) -> Refusal | None:
    """Return why no other start follows an end with this cause, or None if another start follows.

    `used` is how often the run was started again for this cause. `stalled` is how many starts in a row saved no
    checkpoint.
    """
    if cause not in MENDS[by]:
        return Refusal.NOT_MENDED
    budget = retry.get(cause, 0)
    if budget is not None and used >= budget:
        return Refusal.BUDGET_SPENT
    most = AT_TIME_LIMIT if cause == Cause.TIMEOUT else WITHOUT_PROGRESS
    return Refusal.NO_PROGRESS if stalled >= most else None


def times_used(events: Iterable[Event], cause: str) -> int:
    """Return how often any party has started the run again for this cause."""
    return sum(isinstance(event, (StartingAgain, Restart)) and event.cause == cause for event in events)


def budget_left(retry: Budgets, events: Iterable[Event]) -> dict[str, int | None]:
    """Return how many restarts for each cause remain to the leader of the next start; None means unlimited."""
    events = list(events)
    return {
        cause: None if budget is None else max(0, budget - times_used(events, cause)) for cause, budget in retry.items()
    }


def stalled(begun_at: Sequence[Progress], now: Progress) -> int:
    """Return how many of the last starts in a row ended without a newer checkpoint.

    `begun_at` has the progress at the beginning of each start, which equals the progress at the end of the previous
    start. `now` is the progress at the end of the last start.
    """
    count = 0
    for begun, ended in zip(reversed(begun_at), [now, *reversed(begun_at)]):
        if ended > begun:
            break
        count += 1
    return count


def progress_of(event: StartingAgain | AttemptFailed | GangEnded | Collected) -> Progress:
    """Return the run's progress that this event recorded."""
    if isinstance(event, Collected):
        return Progress.of(event.step)
    return Progress.of(event.step, event.beat, event.saved)


def progress_of_starts(events: Iterable[Event]) -> list[Progress]:
    """Return the run's progress at each relaunch of its agents, in order."""
    return [progress_of(event) for event in of(events, StartingAgain)]


# -- the starts of the agents

SHOW_PROGRESS: Final = (StartingAgain, AttemptFailed, GangEnded, Collected)
PASSES: Final = (FoundLost, CleanedUp)  # events of the submitting machine that concern one start and not the whole run
NEVER_AGAIN: Final = (Cancel, SubmitFailed, FoundLost)  # after one of these events, no other start follows


class Relaunch(Value):
    """A decision to start a run's agents again: the number of the start, its first attempt, and the reason."""

    start: int
    attempt: int
    cause: str
    reason: str
    step: int | None = None  # step of the newest checkpoint at the decision
    beat: int | None = None  # step of the newest heartbeat, if there is no checkpoint
    saved: float | None = None  # the time of the last write to a file, if there is no checkpoint


def newest_start(events: Iterable[Event]) -> list[Event]:
    """Return the events of the newest start, and the submitting machine's events about the whole run."""
    events = list(events)
    start = max((each.start for event in events if (each := opened_start(event)) is not None), default=0)
    if start == 0:
        return events
    now: dict[int | None, bool] = {None: not decided_starts(events)}
    kept = []
    for event in events:
        if (opened := opened_start(event)) is not None:
            now[event.node] = opened.start == start
        if now.get(event.node) or (event.node is None and not isinstance(event, PASSES)):
            kept.append(event)
    return kept


def opened_start(event: Event) -> StartingAgain | AgentStarted | None:
    """Return the event if it begins a new start of the agents: StartingAgain from the submitting machine, or
    AgentStarted from a node. Return None for any other event.
    """
    if event.node is None:
        return event if isinstance(event, StartingAgain) else None
    return event if isinstance(event, AgentStarted) else None


def decided_starts(events: Iterable[Event]) -> list[StartingAgain]:
    """Return the starts that the submitting machine has decided on, in order."""
    return [event for event in of(events, StartingAgain) if event.node is None]


def pending_start(events: Iterable[Event]) -> Relaunch | None:
    """Return the newest relaunch that the submitting machine has decided on, or None if it has decided on none."""
    decided = decided_starts(events)
    if not decided:
        return None
    last = decided[-1]
    return Relaunch(last.start, last.attempt, last.cause, last.reason, progress_of(last).known_step)


def last_attempt(events: Iterable[Event], default: int = 0) -> int:
    """Return the highest attempt number of the run, or `default` if no attempt is recorded."""
    return max((event.attempt for event in of(events, OfAttempt)), default=default)


def newest_saved(events: Iterable[Event]) -> Progress:
    """Return the greatest progress of the run that any event recorded."""
    return max((progress_of(event) for event in events if isinstance(event, SHOW_PROGRESS)), default=Progress())


def next_start(
    retry: Budgets, events: Iterable[Event], cause: str, reason: str, *, lost: bool = False
) -> Relaunch | str | None:
    """Return the start that follows an end with this cause, or None if no start follows. If too many starts in a row
    made no progress, return a sentence that says so.

    `retry` has the budgets by cause; restarts by leaders count too. A run that has never begun is started again only if
    a node was `lost`, because another start would not remove any other cause. If somebody has removed the run's folder
    on a node, ranks that fail after that are not started again, because checkpoints may have been in the folder.
    """
    events = list(events)
    if not lost and of(events, FolderLost):
        return None
    began = lost or any(isinstance(event, (Go, LostNode)) for event in events)
    ended = any(isinstance(event, NEVER_AGAIN) for event in events)
    saved = newest_saved(events)
    in_vain = stalled(progress_of_starts(events), saved)
    no = refusal(Restarter.SUPERVISOR, cause, retry, times_used(events, cause), in_vain)
    if not began or ended or (no is not None and no is not Refusal.NO_PROGRESS):
        return None
    if no is Refusal.NO_PROGRESS:
        return f"{in_vain} starts in a row ended without a new checkpoint; the last: {reason}"
    before = pending_start(events)
    number = (before.start if before else 0) + 1
    return Relaunch(number, last_attempt(events) + 1, cause, reason, **saved.to_event())


def is_limit_signal(name: str, title: str) -> bool:
    """Return whether a signal announces the time limit of the job of the scheduler with this title."""
    facts = titled(title)
    return name in (facts.limit_signals if facts is not None else LIMIT_SIGNALS)

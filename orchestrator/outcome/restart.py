"""The restart policy: which ends are followed by another start, by whom, how often, and when no more. Pure.

Three parties start ranks again. The leader starts the gang's next attempt if all nodes are still there. The supervisor
starts the agents over SSH after a lost node or a preemption. A scheduler requeues its job. All use the job's budgets
(`retry`), by the cause of the end, and all stop when no new checkpoints are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Optional

from orchestrator.outcome.verdict import Cause, Event
from orchestrator.protocol.events import EventKind
from orchestrator.protocol.progress import Progress, progress_of
from orchestrator.protocol.str_enum import StrEnum

Budgets = Mapping[str, Optional[int]]  # by cause; None: unlimited

WITHOUT_PROGRESS = 3
"""After this many attempts or starts in a row without a new checkpoint there are no more."""
AT_TIME_LIMIT = 1
"""The same for starts that end at the time limit, because the next would have no more time."""


class Restarter(StrEnum):
    """The party that would start the ranks again."""

    LEADER = "leader"
    """The gang's leader, by another attempt of the same agents."""
    SUPERVISOR = "supervisor"
    """The supervisor, by new agents after the old ones could not continue."""
    SCHEDULER = "scheduler"
    """The job's own batch script, by a requeue."""


MENDS: Mapping[Restarter, Sequence[Cause]] = {
    Restarter.LEADER: (Cause.USER_ERROR, Cause.INFRA),
    Restarter.SUPERVISOR: (Cause.INFRA, Cause.PREEMPTED),  # a time limit is meant to end a run
    # the limit of a partition or queue, after which a requeue can continue the job
    Restarter.SCHEDULER: (Cause.INFRA, Cause.PREEMPTED, Cause.TIMEOUT),
}
"""For each party, the causes that another start by it may cure."""


class Refusal(StrEnum):
    """Why no other start follows."""

    NOT_MENDED = "not_mended"
    """Another start would end in the same way."""
    BUDGET_SPENT = "budget_spent"
    """The job's `retry` allows no more for this cause."""
    NO_PROGRESS = "no_progress"
    """The last starts have brought no new checkpoint."""


def refusal(by: Restarter, cause: str, retry: Budgets, used: int, stalled: int = 0) -> Refusal | None:
    """Return why an end with this cause is not followed by another start, or None if it is.

    `used` is how often the run was started again for this cause. `stalled` is how many starts in a row brought no
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
    """Return how often the run was started again for this cause, by any party."""
    return sum(
        event.get("kind") in (EventKind.RELAUNCH, EventKind.RESTART) and event.get("cause") == cause for event in events
    )


def budget_left(retry: Budgets, events: Iterable[Event]) -> dict[str, int | None]:
    """Return the remaining budgets for the next leader."""
    events = list(events)
    return {
        cause: None if budget is None else max(0, budget - times_used(events, cause)) for cause, budget in retry.items()
    }


def stalled(begun_at: Sequence[Progress], now: Progress) -> int:
    """Return how many of the last starts in a row ended without a newer checkpoint.

    Each start ended with the progress at which the next began, and the last ended at `now`.
    """
    count = 0
    for begun, ended in zip(reversed(begun_at), [now, *reversed(begun_at)]):
        if ended > begun:
            break
        count += 1
    return count


def progress_of_starts(events: Iterable[Event]) -> list[Progress]:
    """Return the progress at each relaunch of the run's agents, in order."""
    return [progress_of(event) for event in events if event.get("kind") == EventKind.RELAUNCH]


# -- the starts of the agents

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


def newest_start(events: Iterable[Event]) -> list[Event]:
    """Return the events that count now: those of the newest start, and the submitting machine's about the run."""
    events = list(events)
    start = max((_int(event.get("start")) or 0 for event in events if opens_start(event)), default=0)
    if start == 0:
        return events
    now: dict[Any, bool] = {None: not any(opens_start(event) and "node" not in event for event in events)}
    kept = []
    for event in events:
        node = event.get("node")
        if opens_start(event):
            now[node] = (_int(event.get("start")) or 0) == start
        if now.get(node) or (node is None and event.get("kind") not in PASSES):
            kept.append(event)
    return kept


def opens_start(event: Event) -> bool:
    """Tell whether a start of the agents begins with this event, for its node or for the submitting machine."""
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
    restarted only if a node was `lost`, because another start would cure nothing else. Ranks that fail after somebody
    has removed the run's folder on a node are not started again, because checkpoints may have gone with the folder.
    """
    events = list(events)
    if not lost and any(event.get("kind") == EventKind.FOLDER_LOST for event in events):
        return None
    began = lost or any(event.get("kind") in (EventKind.GO, EventKind.LOST_NODE) for event in events)
    ended = any(event.get("kind") in NEVER_AGAIN for event in events)
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


def _int(value: Any) -> int | None:
    return value if type(value) is int else None


def is_limit_signal(name: str, title: str) -> bool:
    """Return True if a signal announces the time limit of the scheduler's job.

    orch has Slurm send SIGUSR2. It sends SIGXCPU itself in jobs of other schedulers, because Grid Engine sends SIGUSR2
    before every end of a job, also after `qdel`.
    """
    from orchestrator.protocol.allocation import TITLES  # a look at runs seldom needs it

    return name == "SIGXCPU" or (name == "SIGUSR2" and title != TITLES["sge"])

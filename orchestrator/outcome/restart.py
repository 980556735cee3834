"""The restart policy: which ends are followed by another start, by whom, how often, and when no more. Pure.

Three parties start ranks again. The leader starts the gang's next attempt if all nodes are still there. The supervisor
starts the agents over SSH after a lost node or a preemption. Slurm requeues the job. All use the job's budgets
(`retry`), by the cause of the end, and all stop when no new checkpoints are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Optional

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
    SLURM = "slurm"
    """The job's own batch script, by a requeue."""


MENDS: Mapping[Restarter, Sequence[Cause]] = {
    Restarter.LEADER: (Cause.USER_ERROR, Cause.INFRA),
    Restarter.SUPERVISOR: (Cause.INFRA, Cause.PREEMPTED),  # a time limit is meant to end a run
    # the partition's limit, after which a requeue can continue the job
    Restarter.SLURM: (Cause.INFRA, Cause.PREEMPTED, Cause.TIMEOUT),
}
"""For each party, the causes that another start by it may cure."""


class Refusal(StrEnum):
    """The reason against another start."""

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

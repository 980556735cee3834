"""The restart policy: which ends are followed by another start, by whom, how often, and when it has no point. Pure.

Three start ranks again: the leader the gang's next attempt, where all nodes are still there; the supervisor the agents
over SSH, after a lost node or a preemption; Slurm the job, by a requeue. They draw on the same budgets of the job,
`retry`, by the cause of the end, and all stop where checkpoints stop coming.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from orchestrator.protocol.events import EventKind
from orchestrator.protocol.str_enum import StrEnum

Event = Mapping[str, Any]
Budgets = Mapping[str, Optional[int]]  # by cause; None: as often as it takes

WITHOUT_PROGRESS = 3
"""So many attempts, or starts, in a row without a new checkpoint are the last."""
AT_TIME_LIMIT = 1
"""As many of those that end at the time limit: the next one would have no more time."""


class Progress(NamedTuple):
    """How far a run has come: its newest checkpoint's step; without one, its heartbeats' and when it last wrote a file.

    The later of two is the greater one: any checkpoint's step counts for more than the signs of a run without one.
    """

    step: int = -1
    beat: int = -1
    saved: float = 0.0

    @property
    def known_step(self) -> int | None:
        """Return the step; None where there is none."""
        return None if self.step < 0 else self.step

    def to_event(self) -> dict[str, Any]:
        """Return the fields by which an event tells it."""
        signs = {} if self.step >= 0 else {"beat": self.beat if self.beat >= 0 else None, "saved": self.saved or None}
        return {"step": self.known_step, **{name: value for name, value in signs.items() if value is not None}}


def progress_of(event: Event) -> Progress:
    """Return what an event tells of it."""
    step, beat = (each if type(each := event.get(name)) is int else -1 for name in ("step", "beat"))
    saved = event.get("saved")
    return Progress(step, beat, saved if isinstance(saved, float) else 0.0)


class Restarter(StrEnum):
    """Who would start the ranks again."""

    LEADER = "leader"
    """The gang's leader: another attempt by the same agents."""
    SUPERVISOR = "supervisor"
    """The controlling side: other agents, after these could not go on."""
    SLURM = "slurm"
    """The job's own batch script: a requeue."""


MENDS: Mapping[Restarter, Sequence[str]] = {
    Restarter.LEADER: ("user_error", "infra"),
    Restarter.SUPERVISOR: ("infra", "preempted"),  # a time limit is meant to end a run
    Restarter.SLURM: ("infra", "preempted", "timeout"),  # the partition's limit, which the job outlives by a requeue
}
"""The causes of an end that another start by each of them may mend."""


class Refusal(StrEnum):
    """Why there is no further start."""

    NOT_MENDED = "not_mended"
    """Another start would end in the same way."""
    BUDGET_SPENT = "budget_spent"
    """The job's `retry` allows no more for this cause."""
    NO_PROGRESS = "no_progress"
    """The last ones have brought no new checkpoint."""


def refusal(by: Restarter, cause: str, retry: Budgets, used: int, stalled: int = 0) -> Refusal | None:
    """Return why an end with this cause is not followed by another start; None where it is.

    used: how often the run was started again for this cause; stalled: how many starts in a row brought no checkpoint.
    """
    if cause not in MENDS[by]:
        return Refusal.NOT_MENDED
    budget = retry.get(cause, 0)
    if budget is not None and used >= budget:
        return Refusal.BUDGET_SPENT
    most = AT_TIME_LIMIT if cause == "timeout" else WITHOUT_PROGRESS
    return Refusal.NO_PROGRESS if stalled >= most else None


def times_used(events: Iterable[Event], cause: str) -> int:
    """Return how often the run was started again for this cause, whoever did it."""
    return sum(
        event.get("kind") in (EventKind.RELAUNCH, EventKind.RESTART) and event.get("cause") == cause for event in events
    )


def budget_left(retry: Budgets, events: Iterable[Event]) -> dict[str, int | None]:
    """Return the budgets that the next leader gets: what was used before is gone."""
    events = list(events)
    return {
        cause: None if budget is None else max(0, budget - times_used(events, cause)) for cause, budget in retry.items()
    }


def stalled(begun_at: Sequence[Progress], now: Progress) -> int:
    """Return how many of the starts that began there, the last ones in a row, ended without a newer checkpoint.

    Each ended where the next one began, and the last at `now`.
    """
    count = 0
    for begun, ended in zip(reversed(begun_at), [now, *reversed(begun_at)]):
        if ended > begun:
            break
        count += 1
    return count


def progress_of_starts(events: Iterable[Event]) -> list[Progress]:
    """Return what had been saved when the run's agents were started again, in order."""
    return [progress_of(event) for event in events if event.get("kind") == EventKind.RELAUNCH]

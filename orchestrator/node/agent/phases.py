"""The phases of a gang, and the type of a row in the leader's table of phases."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Callable, NamedTuple

from orchestrator.protocol.progress import Progress
from orchestrator.protocol.str_enum import StrEnum

if TYPE_CHECKING:
    from orchestrator.node.agent.leader import Leader


class Phase(StrEnum):
    """The phase of the gang. Each further attempt begins with PREPARING."""

    JOINING = "joining"
    CHECKING = "checking"
    PREPARING = "preparing"
    HANDING_OVER = "handing over"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class Stage(NamedTuple):
    """The present phase, the nodes that have not answered yet in this phase, and the time-out for their answers."""

    phase: Phase
    waiting: frozenset[int]
    patience: float  # seconds
    deadline: float

    @staticmethod
    def begin(phase: Phase, waiting: Iterable[int], now: float, patience: float) -> Stage:
        """Return a stage that begins now, with a new deadline."""
        return Stage(phase, frozenset(waiting), patience, now + patience)

    def after(self, phase: Phase, waiting: Iterable[int]) -> Stage:
        """Return a stage for another phase that keeps the present deadline."""
        return self._replace(phase=phase, waiting=frozenset(waiting))


class Course(NamedTuple):
    """The history of the gang's attempts: the number of the present attempt, the causes of the restarts, and the
    progress at the beginning of each attempt.
    """

    attempt: int
    restarts: tuple[str, ...]  # the causes
    begun_at: tuple[Progress, ...]

    def again(self, cause: str, saved: Progress) -> Course:
        """Return the history with one more attempt, its cause and the run's present progress."""
        return Course(self.attempt + 1, (*self.restarts, cause), (*self.begun_at, saved))


class Row(NamedTuple):
    """A phase's row in the leader's table: the step after all nodes have answered, and the error message about a late
    node.

    A phase with an error message `late` has a deadline, and if a node is lost in this phase, the gang ends. In phases
    without `late`, the ranks run.
    """

    then: Callable[[Leader, float], None]
    late: str = ""

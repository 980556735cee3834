"""The phases of a gang, and the row of the leader's table for each phase."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Callable, NamedTuple

from orchestrator.protocol.progress import Progress
from orchestrator.protocol.str_enum import StrEnum

if TYPE_CHECKING:
    from orchestrator.node.agent.leader import Leader


class Phase(StrEnum):
    """The phase of the gang. Another attempt begins with preparing again."""

    JOINING = "joining"
    CHECKING = "checking"
    PREPARING = "preparing"
    HANDING_OVER = "handing over"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class Stage(NamedTuple):
    """The present phase, the nodes that owe an answer in it, and the time that they have for it."""

    phase: Phase
    waiting: frozenset[int]
    patience: float  # seconds
    deadline: float

    @staticmethod
    def begin(phase: Phase, waiting: Iterable[int], now: float, patience: float) -> Stage:
        """Return the stage that begins now."""
        return Stage(phase, frozenset(waiting), patience, now + patience)

    def after(self, phase: Phase, waiting: Iterable[int]) -> Stage:
        """Return the stage of another phase, which keeps the deadline."""
        return self._replace(phase=phase, waiting=frozenset(waiting))


class Course(NamedTuple):
    """The gang's attempts: the number of the present one, why ranks were started again, and the progress each time."""

    attempt: int
    restarts: tuple[str, ...]  # the causes
    begun_at: tuple[Progress, ...]

    def again(self, cause: str, saved: Progress) -> Course:
        """Return the course with another attempt."""
        return Course(self.attempt + 1, (*self.restarts, cause), (*self.begun_at, saved))


class Row(NamedTuple):
    """A phase: the reports that it waits for, the next step, and the error message about a late node.

    A phase with `late` has a deadline, and ends the gang if a node is lost. In the other phases the ranks run.
    """

    waits_for: str
    then: Callable[[Leader, float], None]
    late: str = ""

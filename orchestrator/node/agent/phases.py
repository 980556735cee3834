"""The phases of a gang, and the row of the leader's table for each phase."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, NamedTuple

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


class Row(NamedTuple):
    """A phase: the reports that it waits for, the next step, and the error message about a late node.

    A phase with `late` has a deadline, and ends the gang if a node is lost. In the other phases the ranks run.
    """

    waits_for: str
    then: Callable[[Leader, float], None]
    late: str = ""

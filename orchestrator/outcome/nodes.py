"""The state of one node of a run, from its own events and its agent's liveness."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.protocol.str_enum import StrEnum


class NodeStatus(StrEnum):
    """The status of one node of a run."""

    WAITING = "waiting"  # its agent has not reported yet
    STARTING = "starting"  # its agent has reported
    JOINED = "joined"  # its agent has joined node 0's gang
    RUNNING = "running"  # its ranks were started
    ENDED = "ended"  # its agent has written its last event
    LOST = "lost"  # its agent is gone without a last event

    @property
    def final(self) -> bool:
        """Tell whether the node will send nothing more."""
        return self in (NodeStatus.ENDED, NodeStatus.LOST)


@dataclass(frozen=True)
class Unreachable:
    """Since when (wall clock) a node's machine can't be reached, and why. Its data is from that time."""

    since: float
    why: str = ""


@dataclass(frozen=True)
class NodeState:
    """One node."""

    node: int
    host: str
    state: NodeStatus
    ranks: tuple[int, int] | None = None  # [first, last + 1)
    exits: dict[int, str] = field(default_factory=dict)
    unreachable: Unreachable | None = None

"""What a drill can do to a run: the words are on the command line, and in the order to a node. Python 3.9."""

from __future__ import annotations

from orchestrator.protocol.str_enum import StrEnum


class Fault(StrEnum):
    """Whose end, or pause, a drill brings about."""

    RANK = "rank"
    """KILL to one rank."""
    LAUNCHER = "launcher"
    """KILL to the launcher of one node."""
    AGENT = "agent"
    """KILL to the agent of one node."""
    NODE = "node"
    """KILL to all of the run's processes on one node."""
    SUPERVISOR = "supervisor"
    """KILL to the supervisor, which is on the controlling side."""
    FREEZE = "freeze"
    """STOP to all of the run's processes on one machine, and CONT some time later."""


KILLS = (Fault.RANK, Fault.LAUNCHER, Fault.AGENT, Fault.NODE, Fault.SUPERVISOR)

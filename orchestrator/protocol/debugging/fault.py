"""The faults that `orch drill` can cause. The command line and the order to a node name them. Python 3.9."""

from __future__ import annotations

from orchestrator.protocol.str_enum import StrEnum


class Fault(StrEnum):
    """The process or machine that a drill kills or pauses."""

    RANK = "rank"
    """KILL to one rank."""
    LAUNCHER = "launcher"
    """KILL to the launcher of one node."""
    AGENT = "agent"
    """KILL to the agent of one node."""
    NODE = "node"
    """KILL to all of the run's processes on one node."""
    SUPERVISOR = "supervisor"
    """KILL to the supervisor on the submitting machine."""
    FREEZE = "freeze"
    """STOP to all of the run's processes on one machine, and CONT some time later."""


KILLS = (Fault.RANK, Fault.LAUNCHER, Fault.AGENT, Fault.NODE, Fault.SUPERVISOR)

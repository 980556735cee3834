"""The faults that `orch drill` can cause. Their values appear on the command line and in orders to nodes."""

from __future__ import annotations

from orchestrator.protocol.str_enum import StrEnum


class Fault(StrEnum):
    """The process or machine that a drill kills or pauses."""

    RANK = "rank"
    """Send KILL to one rank."""
    LAUNCHER = "launcher"
    """Send KILL to the launcher of one node."""
    AGENT = "agent"
    """Send KILL to the agent of one node."""
    NODE = "node"
    """Send KILL to all of the run's processes on one node."""
    SUPERVISOR = "supervisor"
    """Send KILL to the supervisor on the submitting machine."""
    FREEZE = "freeze"
    """Send STOP to all of the run's processes on one machine, and CONT some time later."""


KILLS = (Fault.RANK, Fault.LAUNCHER, Fault.AGENT, Fault.NODE, Fault.SUPERVISOR)

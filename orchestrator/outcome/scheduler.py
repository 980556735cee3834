"""A scheduler's report on a run's job, and its weight beside the records of the run's own agents.

The records show how far the agents got and who caused an end. Only the scheduler knows that the job will start again,
or that a time limit or a lost node ended the job before an agent could report it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from orchestrator.outcome.judge import cancelled
from orchestrator.outcome.verdict import Cause, NodeState, NodeStatus, Outcome, Verdict
from orchestrator.protocol.events import Event
from orchestrator.protocol.str_enum import StrEnum, member_of


class JobEnd(StrEnum):
    """How a job ended, as its scheduler reports it."""

    COMPLETED = "completed"  # its script exited with 0
    FAILED = "failed"  # its script failed
    CANCELLED = "cancelled"  # by a user
    TIMEOUT = "timeout"  # a limit or a deadline of the job was reached
    PREEMPTED = "preempted"  # it had to give way to another job
    OTHER = ""  # such as the loss of a node


# Causes after which the scheduler may start the job again.
MAY_GO_ON: Final = (Cause.PREEMPTED, Cause.TIMEOUT, Cause.INFRA)


@dataclass(frozen=True)
class SchedulerStatus:
    """One scheduler's view of a run's job at one moment."""

    phase: str  # none (it knows no job) | waiting | active | ended | unknown (it can't be asked now)
    detail: str = ""  # before the end: a sentence for people
    is_stuck: bool = False  # it waits for something that may never happen
    is_suspended: bool = False
    outcome: str = ""  # after the end: failed or cancelled, if the scheduler caused it
    cause: str = ""
    reason: str = ""

    @staticmethod
    def of_end(end: JobEnd, reason: str) -> SchedulerStatus:
        """Return the status of a job that ended in this way. The run's own files tell the rest of a completed job."""
        if end is JobEnd.COMPLETED:
            return SchedulerStatus("ended")
        outcome = Outcome.CANCELLED if end is JobEnd.CANCELLED else Outcome.FAILED
        cause = {JobEnd.TIMEOUT: Cause.TIMEOUT, JobEnd.PREEMPTED: Cause.PREEMPTED}.get(end, Cause.INFRA)
        return SchedulerStatus("ended", outcome=outcome, cause=cause, reason=reason)

    def alive(self, nodes: int) -> dict[int, bool | None]:
        """Return whether each node's agent is alive, which is the same for all nodes of a job; empty without a job."""
        if self.phase == "none":
            return {}
        return dict.fromkeys(range(nodes), {"active": True, "ended": False}.get(self.phase))


def verdict_with(
    own: Verdict | None, status: SchedulerStatus, nodes: Iterable[NodeState], attempt: int, events: Iterable[Event]
) -> Verdict | None:
    """Return the verdict of the records and the scheduler together; None while the job may continue.

    1. An end that no start may follow stands, whatever the scheduler reports. So does any end of a job that ended by
       itself or that the scheduler does not know.
    2. While the scheduler has the job, another end is not the last one.
    3. If no agent could report its end, the scheduler's report is the verdict. A cancel by the scheduler counts as one.
    4. Otherwise the scheduler's reason precedes that of the records.
    """
    if own is not None and not (own.outcome is Outcome.FAILED and own.cause in MAY_GO_ON):
        return own
    if status.phase != "ended":
        return own if status.phase == "none" else None
    if (outcome := member_of(Outcome, status.outcome)) is None:
        return own
    if own is None or all(node.state in (NodeStatus.LOST, NodeStatus.WAITING) for node in nodes):
        own = Verdict(outcome, member_of(Cause, status.cause) or Cause.NONE, attempt=attempt)
    if outcome is Outcome.CANCELLED:
        return cancelled(events, replace(own, reason=status.reason))
    return replace(own, outcome=outcome, reason="; ".join(filter(None, [status.reason, own.reason])), hint="")

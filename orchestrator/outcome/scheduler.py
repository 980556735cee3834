"""Combines a scheduler's report on a run's job with the records that the run's own agents wrote.

The records show how far the agents got, and who caused an end. Only the scheduler knows whether it will start the job
again, and whether a time limit or a lost node ended the job before an agent could report it.
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

    COMPLETED = "completed"  # the job's script exited with 0
    FAILED = "failed"  # the job's script failed
    CANCELLED = "cancelled"  # a user cancelled the job
    TIMEOUT = "timeout"  # a limit or a deadline of the job was reached
    PREEMPTED = "preempted"  # the scheduler ended the job to make room for another job
    OTHER = ""  # something outside the job failed, such as a node


# Causes after which the scheduler may start the job again.
MAY_GO_ON: Final = (Cause.PREEMPTED, Cause.TIMEOUT, Cause.INFRA)


@dataclass(frozen=True)
class SchedulerStatus:
    """A scheduler's report on a run's job at one moment."""

    phase: str  # none (the scheduler has no such job) | waiting | active | ended | unknown (no answer now)
    detail: str = ""  # before the end: what the job waits for, as a sentence for people
    is_stuck: bool = False  # the job waits for something that may never happen
    is_suspended: bool = False
    outcome: str = ""  # after the end: failed or cancelled, if the scheduler ended the job
    cause: str = ""
    reason: str = ""
    changed: str = ""  # what the scheduler has changed in the job, as a sentence

    @staticmethod
    def of_end(end: JobEnd, reason: str) -> SchedulerStatus:
        """Return the status that follows from how the job ended. If the job completed, the run's own files decide
        the outcome.
        """
        if end is JobEnd.COMPLETED:
            return SchedulerStatus("ended")
        outcome = Outcome.CANCELLED if end is JobEnd.CANCELLED else Outcome.FAILED
        cause = {JobEnd.TIMEOUT: Cause.TIMEOUT, JobEnd.PREEMPTED: Cause.PREEMPTED}.get(end, Cause.INFRA)
        return SchedulerStatus("ended", outcome=outcome, cause=cause, reason=reason)

    def alive(self, nodes: int) -> dict[int, bool | None]:
        """Map each node to whether its agent is alive (None if unknown). All nodes of a job have the same value. The
        result is empty if there is no job.
        """
        if self.phase == "none":
            return {}
        return dict.fromkeys(range(nodes), {"active": True, "ended": False}.get(self.phase))


def verdict_with(
    own: Verdict | None, status: SchedulerStatus, nodes: Iterable[NodeState], attempt: int, events: Iterable[Event]
) -> Verdict | None:
    """Return the verdict that follows from `own` (the verdict from the run's records) and the scheduler's report.
    Return None while the job may continue.

    1. If the records' verdict rules out another start, it is final, whatever the scheduler reports. It is also final if
       the job ended by itself, or if the scheduler has no such job.
    2. Otherwise there is no verdict while the job is queued or active, because it may start again.
    3. If no agent could report its end, or if the scheduler cancelled the job, the scheduler's report is the verdict.
    4. Otherwise the reason in the scheduler's report is put before the reason in the records.
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

"""A scheduler's status of a run, and its combination with the run's own files. Pure.

The files show how far the agents got and who caused an end. Only the scheduler knows that the job still waits and why,
that it will start again, or that a time limit or a lost node ended it before an agent could report it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from orchestrator.runs.state import Cause, NodeStatus, Outcome, RunState, RunStatus, Verdict, member_of

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

    def alive(self, nodes: int) -> dict[int, bool | None]:
        """Return whether each node's agent is alive, which is the same for all nodes of a job; empty without a job."""
        if self.phase == "none":
            return {}
        return dict.fromkeys(range(nodes), {"active": True, "ended": False}.get(self.phase))


def joined(state: RunState, status: SchedulerStatus) -> RunState:
    """Combine both: a verdict is held back while the job may continue, and gets the scheduler's reason."""
    if status.phase == "ended":
        return _with_reason(state, status)
    if status.phase == "none" or (state.verdict is not None and not _may_go_on(state.verdict)):
        return state
    if state.verdict is not None:
        resumed = replace(state, state=RunStatus.RESTARTING, verdict=None, ended=None)
        return replace(resumed, detail="; ".join(filter(None, [status.detail, state.verdict.reason])))
    if status.phase == "waiting" and state.state in (RunStatus.SUBMITTING, RunStatus.PENDING, RunStatus.STARTING):
        return replace(state, state=RunStatus.PENDING, detail=status.detail)
    if status.phase == "waiting" and state.state == RunStatus.RUNNING:  # its nodes were taken away
        return replace(state, state=RunStatus.RESTARTING, detail=status.detail)
    if status.phase in ("waiting", "unknown"):
        return replace(state, detail=status.detail or state.detail)
    if state.state in (RunStatus.SUBMITTING, RunStatus.PENDING):
        return replace(state, state=RunStatus.STARTING, detail=status.detail)
    if status.is_suspended:  # its processes are stopped and can't report it
        return replace(state, detail=status.detail)
    return state


def _may_go_on(verdict: Verdict) -> bool:
    return verdict.outcome == Outcome.FAILED and verdict.cause in MAY_GO_ON


def _with_reason(state: RunState, status: SchedulerStatus) -> RunState:
    """Return the state with the verdict of a job that has ended: the files' own, with the scheduler's facts added."""
    own, outcome = state.verdict, member_of(Outcome, status.outcome)
    if outcome is None or (own is not None and not _may_go_on(own)):
        return state
    if own is None or all(node.state in (NodeStatus.LOST, NodeStatus.WAITING) for node in state.nodes):
        cause = member_of(Cause, status.cause) or Cause.NONE
        verdict = Verdict(outcome, cause, status.reason, attempt=state.attempt)
    elif outcome == Outcome.CANCELLED:
        verdict = replace(own, outcome=outcome, cause=Cause.NONE, reason=status.reason, hint="")
    else:
        reason = "; ".join(filter(None, [status.reason, own.reason]))
        verdict = replace(own, outcome=outcome, reason=reason, hint="")
    return replace(state, state=outcome.status, verdict=verdict)

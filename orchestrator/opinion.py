"""What a scheduler says of a run, and how that joins what the run's own files say. Pure.

The files tell how far the agents got and whose fault an end was. The scheduler tells what they can't: that the job
still waits and why, that it will start again, that a time limit or a lost node ended it before anybody could say so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from orchestrator.records import RunState, Verdict

MAY_GO_ON: Final = ("preempted", "timeout", "infra")  # ends after which the scheduler may start the job again


@dataclass(frozen=True)
class Opinion:
    """One scheduler's view of a run's job at one moment."""

    phase: str  # none (it knows no job) | waiting | active | ended | unknown (it can't be asked now)
    detail: str = ""  # while it is not ended: a sentence for people
    is_stuck: bool = False  # it waits for what may never come
    outcome: str = ""  # once it has: failed or cancelled, where that was the scheduler's doing
    cause: str = ""
    reason: str = ""

    def alive(self, nodes: int) -> dict[int, bool | None]:
        """Of each of so many nodes: does its agent live? All alike, as the job is; none where there is no job."""
        if self.phase == "none":
            return {}
        return dict.fromkeys(range(nodes), {"active": True, "ended": False}.get(self.phase))


def joined(state: RunState, opinion: Opinion) -> RunState:
    """The run's state by both: a verdict waits while the job may go on, and names the scheduler's reason for an end."""
    if opinion.phase == "ended":
        return _with_reason(state, opinion)
    if opinion.phase == "none" or (state.verdict is not None and not _may_go_on(state.verdict)):
        return state
    if state.verdict is not None:
        again = replace(state, state="restarting", verdict=None, ended=None)
        return replace(again, detail="; ".join(filter(None, [opinion.detail, state.verdict.reason])))
    if opinion.phase == "waiting" and state.state in ("submitting", "pending", "starting"):
        return replace(state, state="pending", detail=opinion.detail)
    if opinion.phase == "waiting" and state.state == "running":  # its nodes have been taken from it
        return replace(state, state="restarting", detail=opinion.detail)
    if opinion.phase in ("waiting", "unknown"):
        return replace(state, detail=opinion.detail or state.detail)
    if state.state in ("submitting", "pending"):
        return replace(state, state="starting", detail=opinion.detail)
    return state


def _may_go_on(verdict: Verdict) -> bool:
    return verdict.outcome == "failed" and verdict.cause in MAY_GO_ON


def _with_reason(state: RunState, opinion: Opinion) -> RunState:
    """The verdict of a run whose job is over: the files' own, with what only the scheduler can tell."""
    own = state.verdict
    if not opinion.outcome or (own is not None and not _may_go_on(own)):
        return state
    if own is None or all(node.state in ("lost", "waiting") for node in state.nodes):
        verdict = Verdict(opinion.outcome, opinion.cause, opinion.reason, attempt=state.attempt)
    else:
        cause = "" if opinion.outcome == "cancelled" else own.cause
        words = [opinion.reason, "" if opinion.outcome == "cancelled" else own.reason]
        verdict = replace(own, outcome=opinion.outcome, cause=cause, reason="; ".join(filter(None, words)), hint="")
    return replace(state, state=verdict.outcome, verdict=verdict)

"""Combines a run's state with its scheduler's report: what the job waits for, and whether the run may continue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from orchestrator.outcome.scheduler import SchedulerStatus, verdict_with
from orchestrator.protocol.events import Event
from orchestrator.runs.state import RunState, RunStatus


def joined(state: RunState, status: SchedulerStatus, events: Iterable[Event] = ()) -> RunState:
    """Return the run's state, corrected by the scheduler's report on its job.

    The verdict (how the run ended) is left out while the scheduler may continue the job. After that, the verdict
    includes the scheduler's reason.
    """
    verdict = verdict_with(state.verdict, status, state.nodes, state.attempt, events)
    if verdict is not None:
        return replace(state, state=RunStatus(verdict.outcome.value), verdict=verdict)
    if state.verdict is not None:
        resumed = replace(state, state=RunStatus.RESTARTING, verdict=None, ended=None)
        return replace(resumed, detail="; ".join(filter(None, [status.detail, state.verdict.reason])))
    if status.phase in ("none", "ended"):
        return state
    if status.phase == "waiting" and state.state in (RunStatus.SUBMITTING, RunStatus.PENDING, RunStatus.STARTING):
        return replace(state, state=RunStatus.PENDING, detail=status.detail)
    if status.phase == "waiting" and state.state == RunStatus.RUNNING:  # the scheduler has taken the job's nodes away
        return replace(state, state=RunStatus.RESTARTING, detail=status.detail)
    if status.phase in ("waiting", "unknown"):
        return replace(state, detail=status.detail or state.detail)
    if state.state in (RunStatus.SUBMITTING, RunStatus.PENDING):
        return replace(state, state=RunStatus.STARTING, detail=status.detail)
    if status.is_suspended:  # the processes are stopped, so they can't report this
        return replace(state, detail=status.detail)
    return state

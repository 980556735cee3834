"""The state of a run, derived from its evidence: a pure function, which status and the supervisor share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from orchestrator.looking.evidence import Evidence
from orchestrator.protocol.events import EventKind
from orchestrator.runs.record import RunRecord
from orchestrator.runs.reducer import reduce
from orchestrator.runs.restarts.relaunch import Relaunch, next_start
from orchestrator.runs.scheduler_status import joined
from orchestrator.runs.state import Cause, Event, NodeStatus, Outcome, RunState, RunStatus


def state_from(evidence: Evidence) -> RunState:
    """Return the run's state, with the verdict that it would get now."""
    state = own_state(evidence)
    return judged(evidence, state, start_after(evidence, state))


def own_state(evidence: Evidence) -> RunState:
    """Return the state as the run's own files tell it."""
    state = reduce(evidence.record, evidence.events, evidence.alive, rank0_done=evidence.rank0_done)
    if evidence.other_machine and state.verdict is None:
        told = f"started on {evidence.other_machine}, which knows more: ssh {evidence.other_machine} orch status"
        return replace(state, detail="; ".join(filter(None, [told, state.detail])))
    if not evidence.unreachable:
        return state
    nodes = [replace(node, unreachable=evidence.unreachable.get(node.node)) for node in state.nodes]
    return replace(state, nodes=tuple(nodes))


def start_after(evidence: Evidence, state: RunState) -> Relaunch | str | None:
    """Return what `following` says, if the supervisor may start the agents of this run again."""
    return following(evidence.record, evidence.events, state) if evidence.relaunches else None


def judged(evidence: Evidence, state: RunState, after: Relaunch | str | None) -> RunState:
    """Return the state with what only the scheduler knows, or with the start that follows its end; and who ended it."""
    return _stopped_early(evidence.events, _with_what_follows(evidence, state, after))


def _stopped_early(events: Iterable[Event], state: RunState) -> RunState:
    """Return the state; of a run that a search has cancelled, with the search's word."""
    cancels = [event for event in events if event["kind"] == EventKind.CANCEL]
    reason = cancels[0].get("reason") if cancels else None
    if state.verdict is None or state.verdict.outcome is not Outcome.CANCELLED or not isinstance(reason, str):
        return state
    return replace(state, verdict=replace(state.verdict, cause=Cause.STOPPED_EARLY, reason=reason))


def _with_what_follows(evidence: Evidence, state: RunState, after: Relaunch | str | None) -> RunState:
    if evidence.scheduler is not None:
        was_refused = any(event["kind"] == EventKind.SUBMIT_FAILED for event in evidence.events)
        return state if was_refused else joined(state, evidence.scheduler)
    if after is None or state.verdict is None:
        return _cancelled_between(evidence, state)
    if isinstance(after, str):  # another start has no point
        return replace(state, verdict=replace(state.verdict, cause=Cause.NO_PROGRESS, reason=after))
    detail = f"start {after.start}: {after.reason}"
    return replace(state, state=RunStatus.RESTARTING, verdict=None, ended=None, detail=detail)


def _cancelled_between(evidence: Evidence, state: RunState) -> RunState:
    """Return the state, cancelled where a cancel alone keeps another start from following its end."""
    uncancelled = [event for event in evidence.events if event["kind"] != EventKind.CANCEL]
    if not evidence.relaunches or state.verdict is None or len(uncancelled) == len(evidence.events):
        return state
    if not isinstance(following(evidence.record, uncancelled, state), Relaunch):
        return state
    verdict = replace(state.verdict, outcome=Outcome.CANCELLED, cause=Cause.NONE, reason="", hint="")
    return replace(state, state=RunStatus.CANCELLED, verdict=verdict)


def following(record: RunRecord, events: Iterable[Event], state: RunState) -> Relaunch | str | None:
    """Return the start that follows this end, a sentence why another has no point, or None."""
    if (verdict := state.verdict) is None or verdict.outcome != Outcome.FAILED:
        return None
    lost = any(node.state == NodeStatus.LOST for node in state.nodes)
    return next_start(record.retry, events, verdict.cause, verdict.reason, lost=lost)

"""The state of a run, derived from its evidence: a pure function, which status and the supervisor share."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.looking.evidence import Evidence
from orchestrator.outcome.judge import what_follows
from orchestrator.outcome.restart import Relaunch
from orchestrator.protocol.events import SubmitFailed, of
from orchestrator.runs.reducer import reduce
from orchestrator.runs.state import NodeStatus, RunState, RunStatus, Verdict


def state_from(evidence: Evidence) -> RunState:
    """Return the run's state, with the verdict that it would get now."""
    return judged(evidence)[0]


def judged(evidence: Evidence) -> tuple[RunState, Relaunch | None]:
    """Return the run's state, with the verdict that it would get now, and the start that follows its end."""
    state = _own_state(evidence)
    if evidence.scheduler is not None:
        from orchestrator.runs.scheduler_status import joined

        return state if of(evidence.events, SubmitFailed) else joined(state, evidence.scheduler, evidence.events), None
    if state.verdict is None or not evidence.relaunches:
        return state, None
    lost = any(node.state == NodeStatus.LOST for node in state.nodes)
    after = what_follows(state.verdict, evidence.events, evidence.record.retry, lost=lost)
    if isinstance(after, Verdict):
        return replace(state, state=RunStatus(after.outcome.value), verdict=after), None
    detail = f"start {after.start}: {after.reason}"
    return replace(state, state=RunStatus.RESTARTING, verdict=None, ended=None, detail=detail), after


def _own_state(evidence: Evidence) -> RunState:
    """Return the state that the run's own files show."""
    state = reduce(evidence.record, evidence.events, evidence.alive, rank0_done=evidence.rank0_done)
    if evidence.other_machine and state.verdict is None:
        told = f"started on {evidence.other_machine}, which knows more: ssh {evidence.other_machine} orch status"
        return replace(state, detail="; ".join(filter(None, [told, state.detail])))
    if not evidence.unreachable:
        return state
    nodes = [replace(node, unreachable=evidence.unreachable.get(node.node)) for node in state.nodes]
    return replace(state, nodes=tuple(nodes))

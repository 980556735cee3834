"""What a run's state is and what is to be done about it, from what is known of it: pure, and by these rules alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from orchestrator.outcome.judge import what_follows
from orchestrator.outcome.restart import Relaunch, newest_start, pending_start
from orchestrator.protocol.events import EventKind
from orchestrator.runs.reducer import reduce
from orchestrator.runs.state import Event, HandleStatus, NodeStatus, RunState, RunStatus, Verdict
from orchestrator.supervisor.observe import Evidence, Observation

SAY_WHY: Final = (EventKind.FOUND_LOST, EventKind.SUBMIT_FAILED, EventKind.DROPPED)  # no agent will ever report
LAST_WORDS: Final = (EventKind.AGENT_ENDED, EventKind.GAVE_UP)


@dataclass(frozen=True)
class RecordLost:
    """Record that some agents will never report, and end those that were started."""

    reason: str


@dataclass(frozen=True)
class Drop:
    """Record that a job in its scheduler's queue is not to be started any more."""

    reason: str


@dataclass(frozen=True)
class CleanUp:
    """End what is left of the run's processes."""


@dataclass(frozen=True)
class PassOnCancel:
    """Tell the agents of a recorded cancel: the command that recorded it died before it had."""


@dataclass(frozen=True)
class StartAgents:
    """See another start of the agents through; one that is `new` is recorded before."""

    start: Relaunch
    is_new: bool


@dataclass(frozen=True)
class Finish:
    """End what is left, bring everything here, and write the verdict."""

    verdict: Verdict
    ended: float | None


Action = RecordLost | Drop | CleanUp | PassOnCancel | StartAgents | Finish


def decide(seen: Observation) -> tuple[Action, ...]:
    """Return what is to be done now, in order; nothing while the run goes its way.

    An action that changes what is known comes last: what follows from it is decided by the next observation.
    """
    if reason := _who_is_missing(seen):
        return (RecordLost(reason),)
    evidence = seen.evidence
    state, after = _judged(evidence)
    if after is not None:
        return (StartAgents(after, is_new=True),)
    if state.verdict is not None:
        return (Finish(state.verdict, state.ended),)
    told = (PassOnCancel(),) if seen.is_cancelled and not _was_passed_on(evidence.events) else ()
    if seen.wait is not None and seen.wait.is_unsatisfiable and not _has(evidence.events, EventKind.AGENT_STARTED):
        return (*told, Drop(seen.wait.reason))
    if evidence.scheduler is None and seen.is_quiet and _is_over(evidence.events):  # a job may wait long for its start
        return (*told, CleanUp())
    if evidence.relaunches and (decided := pending_start(evidence.events)) is not None:
        return (*told, StartAgents(decided, is_new=False))
    return told


def state_from(evidence: Evidence) -> RunState:
    """Return the run's state, with the verdict that it would get now."""
    return _judged(evidence)[0]


def _judged(evidence: Evidence) -> tuple[RunState, Relaunch | None]:
    """Return the run's state, with the verdict that it would get now, and the start that follows its end."""
    state = _own_state(evidence)
    if evidence.scheduler is not None:
        from orchestrator.runs.scheduler_status import joined

        is_refused = _has(evidence.events, EventKind.SUBMIT_FAILED)
        return state if is_refused else joined(state, evidence.scheduler, evidence.events), None
    if state.verdict is None or not evidence.relaunches:
        return state, None
    lost = any(node.state == NodeStatus.LOST for node in state.nodes)
    after = what_follows(state.verdict, evidence.events, evidence.record.retry, lost=lost)
    if isinstance(after, Verdict):
        return replace(state, state=RunStatus(after.outcome.value), verdict=after), None
    detail = f"start {after.start}: {after.reason}"
    return replace(state, state=RunStatus.RESTARTING, verdict=None, ended=None, detail=detail), after


def _own_state(evidence: Evidence) -> RunState:
    """Return the state as the run's own files tell it."""
    state = reduce(evidence.record, evidence.events, evidence.alive, rank0_done=evidence.rank0_done)
    if evidence.other_machine and state.verdict is None:
        told = f"started on {evidence.other_machine}, which knows more: ssh {evidence.other_machine} orch status"
        return replace(state, detail="; ".join(filter(None, [told, state.detail])))
    if not evidence.unreachable:
        return state
    nodes = [replace(node, unreachable=evidence.unreachable.get(node.node)) for node in state.nodes]
    return replace(state, nodes=tuple(nodes))


def _who_is_missing(seen: Observation) -> str:
    """Return why not all agents will ever report, where the submit died before it had started all; else nothing."""
    evidence, nodes = seen.evidence, seen.evidence.record.nnodes
    started = len(evidence.alive)
    if seen.handle is HandleStatus.INTENT and evidence.scheduler is None:
        # A machine that answers, and knows of no agent, has none.
        started = sum(lives is not None or node in evidence.unreachable for node, lives in evidence.alive.items())
    if started >= max(1, nodes) or (started and seen.handle is HandleStatus.SUBMITTED):
        return ""
    if seen.is_being_submitted or seen.is_queued or seen.may_turn_up:
        return ""
    if pending_start(evidence.events) is not None or any(_has(evidence.events, kind) for kind in SAY_WHY):
        return ""
    what = f"{started} of {nodes} agents" if started else "an agent"
    return f"the submit ended before it had started {what}"


def _was_passed_on(events: Iterable[Event]) -> bool:
    return any(event["kind"] == EventKind.SIGNAL and event.get("cancelled") for event in events)


def _is_over(events: Iterable[Event]) -> bool:
    """Did node 0's agent leave, or another one give it up? Agents leave together: who is still there is frozen."""
    now = newest_start(events)
    left = any(event["kind"] in LAST_WORDS and event.get("node") == 0 for event in now)
    return left or any(event["kind"] == EventKind.GAVE_UP and event.get("node") for event in now)


def _has(events: Iterable[Event], kind: str) -> bool:
    return any(event["kind"] == kind for event in events)

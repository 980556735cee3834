"""Decides from the observed facts which actions a run needs now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from orchestrator.looking.evidence import Evidence, judged
from orchestrator.outcome.restart import Relaunch, newest_start, pending_start
from orchestrator.outcome.verdict import NodeStatus, Verdict
from orchestrator.protocol.events import (
    AgentEnded,
    AgentStarted,
    Dropped,
    Event,
    FoundLost,
    GangEnded,
    GaveUp,
    Go,
    LostNode,
    SignalReceived,
    SubmitFailed,
    of,
)
from orchestrator.runs.start_lock import has_started_all
from orchestrator.runs.state import HandleStatus, RunState
from orchestrator.supervisor.observe import Observation

SAY_WHY: Final = (FoundLost, SubmitFailed, Dropped)  # after one of these events, no agent will report


@dataclass(frozen=True)
class RecordLost:
    """The action that records that some agents will never report, and ends the agents that were started."""

    reason: str


@dataclass(frozen=True)
class Drop:
    """An action: record that a job, which still waits in its scheduler's queue, must not start any more."""

    reason: str


@dataclass(frozen=True)
class CleanUp:
    """The action that ends the remaining processes of the run."""


@dataclass(frozen=True)
class PassOn:
    """The action that tells the agents that the run was cancelled, because the `orch cancel` command may have been
    killed, and which other agents have died.
    """

    is_cancelled: bool
    lost: tuple[int, ...] = ()


@dataclass(frozen=True)
class StartAgents:
    """The action that starts the agents again. If `is_new` is True, it first records the new start. Otherwise it
    completes a recorded start that was interrupted.
    """

    start: Relaunch
    is_new: bool


@dataclass(frozen=True)
class Finish:
    """The action that ends the remaining processes, copies all files to this machine, and writes the verdict (the
    judged result of the run).
    """

    verdict: Verdict
    ended: float | None


Action = RecordLost | Drop | CleanUp | PassOn | StartAgents | Finish


def decide(seen: Observation) -> tuple[Action, ...]:
    """Return the actions that the run needs now, in order. A run that makes progress needs no action.

    An action that changes the observed facts is the last in the list, because the next observation decides what
    follows.
    """
    if reason := _who_is_missing(seen):
        return (RecordLost(reason),)
    evidence = seen.evidence
    state, after = judged(evidence)
    if after is not None:
        return (StartAgents(after, is_new=True),)
    if state.verdict is not None:
        return (Finish(state.verdict, state.ended),)
    lost = _unnoticed_losses(evidence, state)
    is_untold = seen.is_cancelled and not any(each.cancelled for each in of(evidence.events, SignalReceived))
    told = (PassOn(is_untold, lost),) if is_untold or lost else ()
    if seen.wait is not None and seen.wait.is_unsatisfiable and not of(evidence.events, AgentStarted):
        return (*told, Drop(seen.wait.reason))
    if evidence.scheduler is None and seen.is_quiet and _is_over(evidence.events):  # a job may wait long for its start
        return (*told, CleanUp())
    if evidence.relaunches and (decided := pending_start(evidence.events)) is not None:
        return (*told, StartAgents(decided, is_new=False))
    return told


def _who_is_missing(seen: Observation) -> str:
    """Return an error message if the process that started the run died before all agents could report; otherwise "".

    This function implements rules 3 and 4 of `runs/start_lock.py`.
    """
    evidence, nodes = seen.evidence, seen.evidence.record.nnodes
    started = len(evidence.alive)
    if seen.handle is HandleStatus.INTENT and evidence.scheduler is None:
        # If a machine answers without reporting an agent, no agent was started on it.
        started = sum(lives is not None or node in evidence.unreachable for node, lives in evidence.alive.items())
    if has_started_all(seen.handle, started, nodes):
        return ""
    if seen.is_being_started or seen.is_queued or seen.may_turn_up:
        return ""
    if pending_start(evidence.events) is not None or any(isinstance(event, SAY_WHY) for event in evidence.events):
        return ""
    what = f"{started} of {nodes} agents" if started else "an agent"
    return f"orch submit ended before it had started {what}"


def _unnoticed_losses(evidence: Evidence, state: RunState) -> tuple[int, ...]:
    """Return the nodes whose agents have died, and whose loss the leader has not recorded. Once the ranks were started,
    all agents are connected and notice a death. If the run has a scheduler, the scheduler ends the other agents.
    """
    now = newest_start(evidence.events)
    if evidence.scheduler is not None or of(now, Go, GangEnded):
        return ()
    noticed = {event.lost for event in of(now, LostNode)}
    return tuple(each.node for each in state.nodes if each.state is NodeStatus.LOST and each.node not in noticed)


def _is_over(events: Iterable[Event]) -> bool:
    """Return True if node 0's agent has ended, or if another agent has lost its connection to node 0. An agent that
    still does not end after that is frozen.
    """
    now = newest_start(events)
    return any(each.node == 0 for each in of(now, AgentEnded)) or any(each.node is not None for each in of(now, GaveUp))

"""Gathers the facts from which a run's state follows, and computes that state. Nothing is written.

`orch status` and the supervisor share the pure function that computes the state from the facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING

from orchestrator.backends import backend_for
from orchestrator.backends.base import Sight
from orchestrator.errors import StoreError
from orchestrator.outcome.judge import what_follows
from orchestrator.outcome.restart import Relaunch, last_attempt
from orchestrator.outcome.verdict import NodeStatus, Unreachable, Verdict
from orchestrator.protocol.events import Event, SubmitFailed, of
from orchestrator.protocol.frozen import Value
from orchestrator.runs.claims import here
from orchestrator.runs.files.file_cache import FileCache
from orchestrator.runs.record import RunRecord
from orchestrator.runs.reducer import reduce
from orchestrator.runs.state import RunState, RunStatus
from orchestrator.runs.store import RunDir

if TYPE_CHECKING:
    from orchestrator.outcome.scheduler import SchedulerStatus


class Evidence(Value):
    """The facts from which a run's state follows, gathered at one moment."""

    record: RunRecord  # the record, with the hosts of the newest start
    events: tuple[Event, ...] = ()
    alive: Mapping[int, bool | None] = field(default_factory=dict)  # whether each node's agent lives; None: unknown
    rank0_done: bool = False
    scheduler: SchedulerStatus | None = None  # None if the backend has no queue of its own
    relaunches: bool = False  # whether the supervisor may start the agents again
    unreachable: Mapping[int, Unreachable] = field(default_factory=dict)  # by the number of the node
    other_machine: str = ""  # the machine that started the run, if it is not this one; its processes can't be seen here
    job: str | None = None  # the id of the scheduler's job in which the run is, if any

    @property
    def why_unable(self) -> str:
        """Return why this machine can do nothing for the run now; "" if it can."""
        if self.other_machine:
            return f"the run was started on {self.other_machine}"
        if self.scheduler is not None and self.scheduler.phase == "unknown":
            return self.scheduler.detail
        # On the machine that submitted the run, a single machine that does not answer is taken for lost.
        is_away = self.record.home not in ("", here())
        if self.unreachable and (is_away or self.unreachable.keys() >= self.alive.keys()):
            return "; ".join(dict.fromkeys(each.why for each in self.unreachable.values()))
        return ""


def gather(run: RunDir, record: RunRecord, known: FileCache | None = None) -> Evidence:
    """Gather the facts from which the run's present state follows."""
    backend, cache = backend_for(record.kind), known or FileCache()
    sight = backend.look(run)  # taken before the events are read: an agent that is gone now has written all its events
    events = run.events(cache)
    return Evidence(
        with_hosts_now(record, sight),
        events,
        sight.alive,
        _rank0_is_done(run, events, cache),
        sight.scheduler,
        backend.relaunches,
        sight.unreachable,
        sight.other_machine,
        sight.job,
    )


def with_hosts_now(record: RunRecord, sight: Sight) -> RunRecord:
    """Return the record with the nodes of the present start, which may run on other or fewer machines than planned."""
    return replace(record, hosts=sight.hosts, nnodes=len(sight.hosts)) if sight.hosts else record


def _rank0_is_done(run: RunDir, events: tuple[Event, ...], known: FileCache) -> bool:
    """Return whether the file rank0.done says that rank 0 has finished the newest attempt. If the file exists but can't
    be read, the result is True too.
    """
    try:
        marker = known.of_file(f"{run.path}/rank0.done", lambda: run.read("rank0.done"), None)
    except StoreError:
        return True
    return marker is not None and marker.get("attempt") in (last_attempt(events), None)


# -- the state: these functions have no side effects


def state_from(evidence: Evidence) -> RunState:
    """Return the state that follows from the evidence, with the verdict that the run would get now."""
    return judged(evidence)[0]


def judged(evidence: Evidence) -> tuple[RunState, Relaunch | None]:
    """Return the run's state and the relaunch that would follow now; the relaunch is None if none would follow. If the
    run is over, the state includes the verdict (the run's final result).
    """
    state = _own_state(evidence)
    if evidence.scheduler is not None:
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
    """Return the state that the run's own files show, without the scheduler's report."""
    state = reduce(evidence.record, evidence.events, evidence.alive, rank0_done=evidence.rank0_done)
    if evidence.other_machine and state.verdict is None:
        told = f"started on {evidence.other_machine}, which knows more: ssh {evidence.other_machine} orch status"
        return replace(state, detail="; ".join(filter(None, [told, state.detail])))
    if not evidence.unreachable:
        return state
    nodes = [replace(node, unreachable=evidence.unreachable.get(node.node)) for node in state.nodes]
    return replace(state, nodes=tuple(nodes))


def joined(state: RunState, status: SchedulerStatus, events: Iterable[Event] = ()) -> RunState:
    """Return the run's state, corrected by the scheduler's report on its job.

    The verdict (how the run ended) is left out while the scheduler may continue the job. After that, the verdict
    includes the scheduler's reason.
    """
    from orchestrator.outcome.scheduler import verdict_with

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
    return replace(state, detail="; ".join(filter(None, [status.changed, state.detail])))

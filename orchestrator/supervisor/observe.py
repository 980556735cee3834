"""Gathers all that is known of a run at one moment, once a pass. Nothing is decided or written here.

Whether agents are alive is requested before the events are read: an agent that is gone by then has written all of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from orchestrator.backends import backend
from orchestrator.backends.base import Sight
from orchestrator.errors import StoreError
from orchestrator.node.system.processes import Process, is_alive
from orchestrator.protocol.events import EventKind
from orchestrator.runs.dependencies import Wait, is_queued, wait_of
from orchestrator.runs.files.file_cache import FileCache
from orchestrator.runs.record import RunRecord
from orchestrator.runs.restarts.relaunch import last_attempt
from orchestrator.runs.scheduler_status import SchedulerStatus
from orchestrator.runs.state import Event, HandleStatus, Unreachable
from orchestrator.runs.store import RunDir

OVERDUE_SECONDS: Final = 25.0  # the leader itself lingers for at most 21
AGENT_PATIENCE: Final = 10.0  # how long an agent may take from its start to its first words
SUBMIT_PATIENCE: Final = 60.0  # how long a submit may take between recording a run and starting its agents


@dataclass(frozen=True)
class Evidence:
    """The facts from which a run's state follows."""

    record: RunRecord  # with the hosts that it has now
    events: tuple[Event, ...] = ()
    alive: Mapping[int, bool | None] = field(default_factory=dict)  # None: it can't be told now
    rank0_done: bool = False
    scheduler: SchedulerStatus | None = None  # where the backend has a queue of its own
    relaunches: bool = False  # may the supervisor start the agents anew?
    unreachable: Mapping[int, Unreachable] = field(default_factory=dict)  # by node
    other_machine: str = ""  # where the run was started, if not here: of its processes nothing is known
    job: str | None = None  # the number of its job, if a scheduler has given it one


@dataclass(frozen=True)
class Observation:
    """The facts from which a run's next actions follow. Ages are booleans, so that observations compare."""

    evidence: Evidence
    is_cancelled: bool = False  # somebody has recorded a cancel
    handle: HandleStatus | None = None
    is_being_submitted: bool = False  # the process that recorded the run is still at it
    is_queued: bool = False
    may_turn_up: bool = False  # an agent was about to be started just now: one that was says so itself, a moment later
    is_quiet: bool = False  # node 0 has written no event for longer than agents need to leave
    wait: Wait | None = None  # what a job in its scheduler's queue waits for, as far as other runs go


def gather(run: RunDir, record: RunRecord, known: FileCache | None = None) -> Evidence:
    """Return the facts from which the run's present state follows."""
    machine, cache = backend(record.kind), known or FileCache()
    sight = machine.look(run)  # before the events are read: an agent that is gone by then has written all of them
    events = run.events(cache)
    return Evidence(
        with_hosts_now(record, sight),
        events,
        sight.alive,
        _rank0_is_done(run, events, cache),
        sight.scheduler,
        machine.relaunches,
        sight.unreachable,
        sight.other_machine,
        sight.job,
    )


def observe(run: RunDir, record: RunRecord, known: FileCache) -> Observation:
    """Return all that is known of the run. Files that are unchanged since the last use of `known` are not read."""
    is_cancelled = (run.path / "cancel.json").exists()
    evidence = gather(run, record, known)
    return Observation(
        evidence,
        is_cancelled,
        _handle_status(run, known),
        _is_being_submitted(record, evidence.events),
        is_queued(run),  # after the submitter was looked at: a submit may end by queueing the run
        _is_younger(f"{run.path}/handle.json", AGENT_PATIENCE),
        # By when the words arrived: node 0's own clock may be hours off.
        not _is_younger(f"{run.path}/nodes/0/events.jsonl", OVERDUE_SECONDS),
        _wait(run, evidence),
    )


def _wait(run: RunDir, evidence: Evidence) -> Wait | None:
    if evidence.scheduler is None or evidence.scheduler.phase != "waiting":
        return None
    return wait_of(run.root, evidence.record.after)


def with_hosts_now(record: RunRecord, sight: Sight) -> RunRecord:
    """Return the record with the nodes of the present start, which may have other machines, or fewer."""
    return replace(record, hosts=sight.hosts, nnodes=len(sight.hosts)) if sight.hosts else record


def _rank0_is_done(run: RunDir, events: tuple[Event, ...], known: FileCache) -> bool:
    """Tell whether rank 0's marker exists and is of the newest attempt. A marker that can't be read counts as that."""
    try:
        marker = known.of_file(f"{run.path}/rank0.done", lambda: run.read("rank0.done"))
    except StoreError:
        return True
    return marker is not None and marker.get("attempt") in (last_attempt(events), None)


def _handle_status(run: RunDir, known: FileCache) -> HandleStatus | None:
    """Return how far the submit got. If its record is damaged, everything counts as started."""
    try:
        return known.of_file(f"{run.path}/handle.json", run.handle_status)
    except StoreError:
        return HandleStatus.SUBMITTED


def _is_being_submitted(record: RunRecord, events: tuple[Event, ...]) -> bool:
    """Tell whether the run is still being submitted. On another machine, only the record's age can tell."""
    if any(event["kind"] == EventKind.SUBMIT_INTERRUPTED for event in events):
        return False
    if record.submitter.host == os.uname().nodename:
        return is_alive(Process(record.submitter.pid, record.submitter.started))
    return time.time() - record.created < SUBMIT_PATIENCE


def _is_younger(path: str, seconds: float) -> bool:
    """Tell whether the file exists and was written within so many seconds."""
    try:
        return time.time() - os.stat(path).st_mtime < seconds
    except OSError:
        return False

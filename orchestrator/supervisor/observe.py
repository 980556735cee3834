"""Gathers all that is known of a run at one moment, once a pass. Nothing is decided or written here.

Whether agents are alive is requested before the events are read: an agent that is gone by then has written all of them.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Final

from orchestrator.errors import StoreError
from orchestrator.looking.evidence import Evidence, gather
from orchestrator.runs.dependencies import Wait, is_queued, wait_of
from orchestrator.runs.files.file_cache import FileCache
from orchestrator.runs.record import RunRecord
from orchestrator.runs.start_lock import SHOWS_ITSELF_SECONDS, is_being_started
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir

OVERDUE_SECONDS: Final = 25.0  # the leader itself lingers for at most 21


@dataclass(frozen=True)
class Observation:
    """The facts from which a run's next actions follow. Ages are booleans, so that observations compare."""

    evidence: Evidence
    is_cancelled: bool = False  # somebody has recorded a cancel
    handle: HandleStatus | None = None
    is_being_started: bool = False  # a process holds the run's start
    is_queued: bool = False
    may_turn_up: bool = False  # an agent was about to be started just now: one that was says so itself, a moment later
    is_quiet: bool = False  # node 0 has written no event for longer than agents need to leave
    wait: Wait | None = None  # what a job in its scheduler's queue waits for, as far as other runs go


def observe(run: RunDir, record: RunRecord, known: FileCache) -> Observation:
    """Return all that is known of the run. Files that are unchanged since the last use of `known` are not read."""
    is_cancelled = (run.path / "cancel.json").exists()
    is_held = is_being_started(run)  # before its agents are looked at: all that a start has begun is seen once it ended
    evidence = gather(run, record, known)
    return Observation(
        evidence,
        is_cancelled,
        _handle_status(run, known),
        is_held,
        is_queued(run),  # after its start was looked at: a start may end by queueing the run
        _is_younger(f"{run.path}/handle.json", SHOWS_ITSELF_SECONDS),
        # By when the words arrived: node 0's own clock may be hours off.
        not _is_younger(f"{run.path}/nodes/0/events.jsonl", OVERDUE_SECONDS),
        _wait(run, evidence),
    )


def _wait(run: RunDir, evidence: Evidence) -> Wait | None:
    if evidence.scheduler is None or evidence.scheduler.phase != "waiting":
        return None
    return wait_of(run.root, evidence.record.after)


def _handle_status(run: RunDir, known: FileCache) -> HandleStatus | None:
    """Return how far the submit got. If its record is damaged, everything counts as started."""
    try:
        return known.of_file(f"{run.path}/handle.json", run.handle_status)
    except StoreError:
        return HandleStatus.SUBMITTED


def _is_younger(path: str, seconds: float) -> bool:
    """Tell whether the file exists and was written within so many seconds."""
    try:
        return time.time() - os.stat(path).st_mtime < seconds
    except OSError:
        return False

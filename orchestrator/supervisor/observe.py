"""Collects all facts about a run at one moment. Nothing is decided or written.

Whether agents are alive is determined before the events are read. So all events of an agent that has ended are complete
when they are read.
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

OVERDUE_SECONDS: Final = 25.0  # node 0's agent exits at most 21 s after its last event


@dataclass(frozen=True)
class Observation:
    """The facts that decide a run's next actions. A flag records whether a time limit has passed, instead of the time
    itself, so that observations are equal as long as nothing has changed.
    """

    evidence: Evidence
    is_cancelled: bool = False  # a cancel is recorded
    handle: HandleStatus | None = None
    is_being_started: bool = False  # a process holds the lock of the run's start
    is_queued: bool = False
    may_turn_up: bool = False  # the start is so recent that a started agent may not have reported yet
    is_quiet: bool = False  # node 0 has written no event for longer than its agent needs to exit
    wait: Wait | None = None  # the other runs for which a job in its scheduler's queue waits


def observe(run: RunDir, record: RunRecord, known: FileCache) -> Observation:
    """Return all facts about the run. Files that have not changed since the last use of `known` are not read again."""
    is_cancelled = run.is_cancelled
    # Checked before the agents: if no start is in progress now, `gather` sees all agents that were started.
    is_held = is_being_started(run)
    evidence = gather(run, record, known)
    return Observation(
        evidence,
        is_cancelled,
        _handle_status(run, known),
        is_held,
        is_queued(run),  # read after `is_held`, because a start may end by queueing the run
        _is_younger(f"{run.path}/handle.json", SHOWS_ITSELF_SECONDS),
        # the time at which the file was written here counts, because node 0's own clock may be hours off
        not _is_younger(f"{run.path}/nodes/0/events.jsonl", OVERDUE_SECONDS),
        _wait(run, evidence),
    )


def _wait(run: RunDir, evidence: Evidence) -> Wait | None:
    if evidence.scheduler is None or evidence.scheduler.phase != "waiting":
        return None
    return wait_of(run.root, evidence.record.after)


def _handle_status(run: RunDir, known: FileCache) -> HandleStatus | None:
    """Return the status in handle.json, which shows how far the start of the agents got. If the file is damaged, all
    agents count as started.
    """
    try:
        return known.of_file(f"{run.path}/handle.json", run.handle_status)
    except StoreError:
        return HandleStatus.SUBMITTED


def _is_younger(path: str, seconds: float) -> bool:
    """Return True if the file exists and was written within the last `seconds` seconds."""
    try:
        return time.time() - os.stat(path).st_mtime < seconds
    except OSError:
        return False

"""Operations on all runs of a sweep: read their states, wait for them, cancel them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from orchestrator.backends import backend
from orchestrator.errors import EXIT_CANCELLED, EXIT_NOT_FINISHED, EXIT_RUN_FAILED, StoreError
from orchestrator.operations import runs as operations
from orchestrator.operations.runs import POLL_SECONDS, Cancelled
from orchestrator.protocol.events import Cancel
from orchestrator.runs import dependencies
from orchestrator.runs.run_id import sweep_of
from orchestrator.runs.state import RunState
from orchestrator.runs.store import RunDir, check_own, live_runs, newest_groups
from orchestrator.runs.sweeps import points_in
from orchestrator.supervisor.reconcile import state_of

AT_ONCE: Final = 16  # number of runs that are cancelled at a time


def grouped(root: Path, *, everything: bool, limit: int) -> list[list[tuple[RunDir, RunState]]]:
    """Return the newest runs and all live ones, newest first. A sweep is one group with all its runs."""
    groups = newest_groups(root, None if everything else limit)
    seen = {run.run_id for group in groups for run in group}
    rest: dict[str, list[RunDir]] = {}
    for run in live_runs(root):
        sweep = sweep_of(run.run_id)
        if run.run_id not in seen and (sweep or run.run_id) not in rest:
            rest[sweep or run.run_id] = points_in(root, sweep) if sweep else [run]
    looked = [[(run, operations.state_or_why_not(run)) for run in group] for group in [*groups, *rest.values()]]
    there = [[each for each in group if each[0].path.exists()] for group in looked]  # some runs were removed meanwhile
    return [group for group in there if group]


def wait_all(runs: Sequence[RunDir], timeout: float | None = None) -> list[RunState]:
    """Return the states of the runs when all have ended, or after `timeout` seconds."""
    end = None if timeout is None else time.monotonic() + timeout
    known: dict[str, RunState] = {}
    while True:
        for run in runs:
            if run.run_id not in known or not known[run.run_id].is_final:
                known[run.run_id] = state_of(run)
        if all(state.is_final for state in known.values()) or (end is not None and time.monotonic() >= end):
            return [known[run.run_id] for run in runs]
        time.sleep(max(POLL_SECONDS, len(runs) / 100))  # a network file system may send no events


def exit_code(states: Sequence[RunState]) -> int:
    """Return the exit code of `wait` for a sweep: that of its worst run."""
    codes = {operations.exit_code(state) for state in states if not state.is_stopped_early}
    order = (EXIT_NOT_FINISHED, EXIT_RUN_FAILED, EXIT_CANCELLED)
    return next((code for code in order if code in codes), 0)


def cancel_all(root: Path, runs: Sequence[RunDir], *, now: bool) -> list[Cancelled]:
    """Stop the runs, waiting ones first. Return the result for each run that had not ended before."""
    from concurrent.futures import ThreadPoolExecutor

    from orchestrator.supervisor import queue

    live = [run for run in runs if not state_of(run).is_final]
    check_own(root)
    for run in live:
        with contextlib.suppress(StoreError):  # on a full disk each run is cancelled all the same
            run.record_cancel(now=now)
            run.append_event(Cancel(now))
    left = [run for run in live if not queue.drop(run, dependencies.CANCELLED)]
    kinds = {run.run_id: run.record().kind for run in left}
    for kind in set(kinds.values()):
        backend(kind).cancel_waiting([run for run in left if kinds[run.run_id] == kind])
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda run: operations.cancel(root, run, now=now), live))

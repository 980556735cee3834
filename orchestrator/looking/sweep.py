"""Reads the states of many runs at once: the newest runs, or all runs of a sweep."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import EXIT_CANCELLED, EXIT_NOT_FINISHED, EXIT_RUN_FAILED
from orchestrator.looking import run as looking
from orchestrator.looking.run import POLL_SECONDS, state_or_why_not
from orchestrator.looking.state import state_of
from orchestrator.runs.run_id import sweep_of
from orchestrator.runs.state import RunState
from orchestrator.runs.store import RunDir, live_runs, newest_groups
from orchestrator.runs.sweeps import points_in


def grouped(root: Path, *, everything: bool, limit: int) -> list[list[tuple[RunDir, RunState]]]:
    """Return the newest runs and all live runs, newest first. A sweep with all its runs is one group."""
    groups = newest_groups(root, None if everything else limit)
    seen = {run.run_id for group in groups for run in group}
    rest: dict[str, list[RunDir]] = {}
    for run in live_runs(root):
        sweep = sweep_of(run.run_id)
        if run.run_id not in seen and (sweep or run.run_id) not in rest:
            rest[sweep or run.run_id] = points_in(root, sweep) if sweep else [run]
    looked = [[(run, state_or_why_not(run)) for run in group] for group in [*groups, *rest.values()]]
    there = [[each for each in group if each[0].path.exists()] for group in looked]  # some runs were removed meanwhile
    return [group for group in there if group]


def wait_all(runs: Sequence[RunDir], timeout: float | None = None) -> list[RunState]:
    """Wait until all runs have ended or `timeout` seconds have passed, and return their states."""
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
    """Return the exit code of `orch wait` for a sweep, which is the exit code of the sweep's worst run."""
    codes = {looking.exit_code(state) for state in states if not state.is_stopped_early}
    order = (EXIT_NOT_FINISHED, EXIT_RUN_FAILED, EXIT_CANCELLED)
    return next((code for code in order if code in codes), 0)

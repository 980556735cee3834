"""Reads runs for commands: the live state, the record and the logs of one, and the states of many."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.backends import backend_for
from orchestrator.errors import (
    EXIT_CANCELLED,
    EXIT_FILES_LEFT,
    EXIT_NOT_FINISHED,
    EXIT_RUN_FAILED,
    EXIT_SUCCEEDED,
    RunNotFoundError,
    StoreError,
)
from orchestrator.looking.state import state_of
from orchestrator.runs.record import UNKNOWN
from orchestrator.runs.run_id import sweep_of
from orchestrator.runs.state import RunState, RunStatus
from orchestrator.runs.store import RunDir, check_own, live_runs, newest_groups, read_lines
from orchestrator.runs.sweeps import points_in

if TYPE_CHECKING:  # commands that only read runs must not load pydantic
    from orchestrator.runs.files.file_cache import FileCache
    from orchestrator.runs.files.logs import Selection

POLL_SECONDS = 0.1  # a network file system may send no events, so followers poll
METRICS_BYTES = 32 << 20  # bytes; a larger file is not read


def record_of(run: RunDir) -> dict[str, Any]:
    """Return a summary of the whole run as JSON types. It includes the hours that the run has used so far."""
    from orchestrator.runs.files.samples import newest_samples
    from orchestrator.runs.summary import run_record

    metrics = run.path / "metrics.jsonl"
    lines = read_lines(metrics) if metrics.exists() and metrics.stat().st_size <= METRICS_BYTES else ()
    ending = run.ending()
    until = ending.ended if ending is not None and ending.ended is not None else time.time()
    return run_record(run.record(), run.events(), run.read("plan.json"), lines, until, newest_samples(run))


def bringing_logs(run: RunDir, selection: Selection) -> contextlib.AbstractContextManager[None]:
    """Return a context manager that keeps copying the selected logs to this machine while they grow on their nodes."""
    if come_anyway(run, selection):
        return contextlib.nullcontext()
    try:
        check_own(run.root, run)
    except StoreError:  # another user's run: local copies can be read, but no machine is contacted in that user's name
        return contextlib.nullcontext()
    if not (sources := backend_for(run.record().kind).sources(run, present=True)):
        return contextlib.nullcontext()
    from orchestrator.backends.mirror.watching import watching_logs

    return watching_logs(run, sources, selection)


def come_anyway(run: RunDir, selection: Selection) -> bool:
    """Return whether orch copies the selected logs to this machine without a request. It copies rank 0's logs always,
    and all logs when the run has ended.
    """
    return (run.path / "verdict.json").exists() or (selection.rank in (None, 0) and not selection.takes_several)


def state_or_why_not(run: RunDir, known: FileCache | None = None) -> RunState:
    """Return the run's state. If it can't be read, return UNREADABLE with the reason, so that other runs can still
    be shown.
    """
    try:
        return state_of(run, known=known)
    except (StoreError, RunNotFoundError) as error:
        return RunState(run.run_id, UNKNOWN, UNKNOWN, 0.0, RunStatus.UNREADABLE, detail=error.message)


def wait(run: RunDir, on_look: Callable[[RunState], None] | None = None, timeout: float | None = None) -> RunState:
    """Wait until the run has ended or `timeout` seconds have passed, and return its state. During the wait, `on_look`
    is called with each state that is read.
    """
    for state in states(run, timeout):
        if on_look is not None:
            on_look(state)
    return state


def states(run: RunDir, timeout: float | None = None) -> Iterator[RunState]:
    """Yield the run's present state again and again, at least once, until the run has ended or `timeout` seconds have
    passed.
    """
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        state = state_of(run)
        yield state
        if state.is_final or (end is not None and time.monotonic() >= end):
            return
        time.sleep(POLL_SECONDS)  # a network file system may send no events


def exit_code(state: RunState) -> int:
    """Return the exit code of `wait` and `submit --follow` for a run in this state.

    The outputs of a machine that left the run before its end (its number follows those of the nodes) don't count.
    """
    if state.state == RunStatus.SUCCEEDED and any(each.node < len(state.nodes) for each in state.left):
        return EXIT_FILES_LEFT
    return {
        RunStatus.SUCCEEDED: EXIT_SUCCEEDED,
        RunStatus.FAILED: EXIT_RUN_FAILED,
        RunStatus.CANCELLED: EXIT_CANCELLED,
    }.get(state.state, EXIT_NOT_FINISHED)


# -- many runs


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


def exit_code_of_all(states: Sequence[RunState]) -> int:
    """Return the exit code of `orch wait` for a sweep, which is the exit code of the sweep's worst run."""
    codes = {exit_code(state) for state in states if not state.is_stopped_early}
    order = (EXIT_NOT_FINISHED, EXIT_RUN_FAILED, EXIT_CANCELLED, EXIT_FILES_LEFT)
    return next((code for code in order if code in codes), 0)

"""The verbs for many runs at once: submit a sweep, look at it, cancel it, wait for it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.backends import backend, kind_of
from orchestrator.backends.base import BatchSubmitter
from orchestrator.errors import EXIT_CANCELLED, EXIT_NOT_FINISHED, EXIT_RUN_FAILED, OrchError, UsageError
from orchestrator.operations import runs as controller
from orchestrator.operations import submit
from orchestrator.operations.runs import POLL_SECONDS
from orchestrator.prepare.prepare import Prepared, Request, plan_for, prepare
from orchestrator.prepare.record import copy_code, record_run
from orchestrator.protocol.events import EventKind
from orchestrator.runs import dependencies
from orchestrator.runs.record import SweepPoint
from orchestrator.runs.run_id import new_run_id, point_id, sweep_of
from orchestrator.runs.state import RunState
from orchestrator.runs.store import (
    RunDir,
    append_lines,
    check_own,
    live_runs,
    newest_groups,
    remove_run,
    remove_sweep,
    write_durably,
)
from orchestrator.runs.sweeps import Point, make_sweep, share
from orchestrator.specs.sweep import Axis
from orchestrator.supervisor import queue
from orchestrator.supervisor.reconcile import reconcile, state_of
from orchestrator.supervisor.supervisor import start_supervisor
from orchestrator.transport.credentials import credentials_for, entrusted

if TYPE_CHECKING:  # what only looks at runs must not wait for pydantic
    from concurrent.futures import ThreadPoolExecutor

    from orchestrator.backends.base import NodeProof
    from orchestrator.specs.plan import LaunchPlan

AT_ONCE: Final = 16  # files are synced: several runs at a time share the disk's work
PARALLEL: Final = {"local": 1, "ssh": 1, "slurm": 16}  # where nobody says it: a run of a machine's takes all of it


@dataclass(frozen=True)
class Sweep:
    """A sweep that has been read and checked: nothing is written or started yet."""

    axes: tuple[Axis, ...]
    points: tuple[Point, ...]
    prepared: tuple[Prepared, ...]  # of each point
    parallel: int | None


def prepare_sweep(root: Path, request: Request, options: Sequence[str], parallel: int | None) -> Sweep:
    """Read and check every point before anything is written; UsageError names the point that can't be run."""
    from orchestrator.specs.job import Training  # noqa: PLC0415 (loads pydantic)
    from orchestrator.specs.sweep import points_of, read_axes  # noqa: PLC0415 (beside its only use)

    plain = prepare(root, request)
    trains = plain.loaded.job.training is not None
    axes = read_axes(options, Training.model_fields, request.sets, trains=trains)
    points = points_of(axes)
    prepared = []
    for point in points:
        try:
            prepared.append(prepare(root, replace(request, sets=(*request.sets, *point.sets))))
        except UsageError as error:
            raise UsageError(f"--sweep, {point.words()}: {error.message}", error.hint) from error
    folders = [each.loaded.job.checkpoint.dir for each in prepared]
    if len(points) > 1 and (shared := next((name for name in folders if name and folders.count(name) > 1), None)):
        raise UsageError(
            f"--sweep: several points would write their checkpoints to {shared}",
            "leave checkpoint.dir out: each run has a folder of its own",
        )
    return Sweep(tuple(axes), tuple(points), tuple(prepared), parallel)


def submit_sweep(root: Path, asked: Sweep) -> list[RunDir]:
    """Record every point, then start them: as one array where the backend has such, else by the supervisor.

    What can't be recorded leaves no trace; where starting fails, all points are recorded as failed.
    """
    first = asked.prepared[0]
    sweep = new_run_id(first.loaded.job.name)
    names = [point_id(sweep, point.index) for point in asked.points]
    launches = [plan_for(root, each, name) for each, name in zip(asked.prepared, names, strict=True)]
    machine = backend(kind_of(launches[0].profile))
    queued = submit.as_queued(root, machine, launches[0], first.after)
    is_array = isinstance(machine, BatchSubmitter) and queued is not None
    parallel = asked.parallel or (None if is_array else PARALLEL[first.profile.kind])
    if isinstance(machine, BatchSubmitter) and is_array:
        machine.check_alike(launches)
    folder, runs = _record(root, sweep, asked, launches, parallel)
    secrets = first.environment.secrets
    if isinstance(machine, BatchSubmitter) and is_array and queued is not None:
        _submit_array(root, machine, [queued, *launches[1:]], runs, folder, secrets, parallel)
    else:
        _enqueue(folder, runs, secrets)
    start_supervisor(root, without=secrets)
    return runs


def _record(
    root: Path, sweep: str, asked: Sweep, launches: list[LaunchPlan], parallel: int | None
) -> tuple[Path, list[RunDir]]:
    """Make the sweep's folder, with the one copy of the code, and all runs; the real folder, and the runs."""
    first = asked.prepared[0]
    machine = backend(kind_of(launches[0].profile))
    elsewhere = machine.shared_folder(launches[0])
    place = str(Path(elsewhere).parent.parent / "sweeps" / sweep) if elsewhere is not None else None
    record = {
        "sweep": sweep,
        "created": time.time(),
        "fields": {axis.word: axis.field for axis in asked.axes},
        "points": [dict(point.values) for point in asked.points],
        "parallel": parallel,
    }
    folder, runs = make_sweep(root, sweep, place, record), list[RunDir]()
    try:
        facts = copy_code(first, RunDir(folder))
        write_durably(folder / "code.json", json.dumps({"files": facts.pop("listing")}).encode())

        def one(point: Point, prepared: Prepared, launch: LaunchPlan) -> RunDir:
            place = SweepPoint(sweep, point.index, dict(point.values), parallel)
            run = record_run(root, prepared, launch, place, indexed=False)
            runs.append(run)
            share(folder, run, ("code", "code.json", "code.baseline.json"))
            run.append_event(EventKind.SNAPSHOT, **facts)
            return run

        with _threads() as pool:
            runs = list(pool.map(one, asked.points, asked.prepared, launches))
        append_lines(root / "index", [run.run_id for run in runs])
    except OrchError:
        for run in runs:
            remove_run(root, run)
        remove_sweep(root, sweep)
        raise
    return folder, runs


def _threads() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 (a table of runs does without)

    return ThreadPoolExecutor(AT_ONCE)


def _enqueue(folder: Path, runs: Sequence[RunDir], secrets: dict[str, str]) -> None:
    """Leave all starts to the supervisor; what these need of this shell is one file with a name in each run."""
    for run in runs:
        run.append_event(EventKind.QUEUED)
    kept = json.dumps(queue.keep(os.environ, secrets)).encode()
    write_durably(folder / dependencies.QUEUED, kept, private=True)
    for run in runs:
        share(folder, run, (dependencies.QUEUED,))
    (folder / dependencies.QUEUED).unlink()


def _submit_array(
    root: Path,
    machine: BatchSubmitter,
    launches: Sequence[LaunchPlan],
    runs: Sequence[RunDir],
    folder: Path,
    secrets: dict[str, str],
    parallel: int | None,
) -> None:
    tasks = [entrusted(launch.tasks, credentials_for(launch.nnodes), secrets) for launch in launches]
    try:
        machine.submit_all(launches, tasks, runs, folder, parallel)
    except OrchError as error:
        for run in runs:
            run.append_event(EventKind.SUBMIT_FAILED, reason=error.message)
            reconcile(root, run)
        raise
    for run in runs:
        run.append_event(EventKind.SUBMITTED)


# -- all runs of a sweep


def grouped(root: Path, *, everything: bool, limit: int) -> list[list[tuple[RunDir, RunState]]]:
    """The newest runs and all live ones, newest first; those of a sweep together, as one of so many."""
    groups = newest_groups(root, None if everything else limit)
    seen = {run.run_id for group in groups for run in group}
    rest: dict[str, list[RunDir]] = {}
    for run in live_runs(root):
        if run.run_id not in seen:
            rest.setdefault(sweep_of(run.run_id) or run.run_id, []).append(run)
    return [[(run, controller.state_or_why_not(run)) for run in group] for group in [*groups, *rest.values()]]


def wait_all(runs: Sequence[RunDir], timeout: float | None = None) -> list[RunState]:
    """The states of the runs once all have ended, or after `timeout` seconds."""
    end = None if timeout is None else time.monotonic() + timeout
    known: dict[str, RunState] = {}
    while True:
        for run in runs:
            if run.run_id not in known or not known[run.run_id].is_final:
                known[run.run_id] = state_of(run)
        if all(state.is_final for state in known.values()) or (end is not None and time.monotonic() >= end):
            return [known[run.run_id] for run in runs]
        time.sleep(max(POLL_SECONDS, len(runs) / 100))  # files on a network file system send no events


def exit_code(states: Sequence[RunState]) -> int:
    """The exit code of `wait` for a sweep: of the worst of its runs."""
    codes = {controller.exit_code(state) for state in states}
    order = (EXIT_NOT_FINISHED, EXIT_RUN_FAILED, EXIT_CANCELLED)
    return next((code for code in order if code in codes), 0)


def cancel_all(
    root: Path, runs: Sequence[RunDir], *, now: bool, on_end: Callable[[RunState, list[NodeProof]], Any]
) -> None:
    """Stop the runs, those first that wait; `on_end` is told of each, and what is left of it."""
    live = [run for run in runs if not state_of(run).is_final]
    check_own(root)
    for run in live:
        run.write("cancel.json", {"now": now, "time": time.time()})
        run.append_event(EventKind.CANCEL, now=now)
    left = [run for run in live if not queue.drop(run, dependencies.CANCELLED)]
    kinds = {run.run_id: run.record().kind for run in left}
    for kind in set(kinds.values()):
        machine = backend(kind)
        if isinstance(machine, BatchSubmitter):
            machine.cancel_waiting([run for run in left if kinds[run.run_id] == kind])
    with _threads() as pool:
        ends = pool.map(lambda run: controller.cancel(root, run, now=now), live)
        for state, proofs in ends:
            on_end(state, proofs)

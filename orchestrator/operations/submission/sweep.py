"""orch submit --sweep and --search: makes a run for each point (combination of values). All runs are recorded together,
then queued or given to a scheduler.

On Slurm a sweep is one job array. Trials of a search get their values when they start, so each trial is a job of its
own.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.backends import backend_for, kind_of
from orchestrator.backends.base import Backend
from orchestrator.errors import SpecError, UsageError
from orchestrator.operations.submission import submit
from orchestrator.prepare.prepare import Prepared, Request, plan_for, prepare
from orchestrator.prepare.record import copy_code, record_run
from orchestrator.prepare.sweeps.sweep import Axis
from orchestrator.protocol.events import Queued, Snapshot
from orchestrator.runs import dependencies
from orchestrator.runs.record import SweepPoint
from orchestrator.runs.run_id import new_run_id, point_id
from orchestrator.runs.searches import Sampler, Search, Stop, write_search
from orchestrator.runs.start_lock import STARTING, being_started
from orchestrator.runs.store import (
    RunDir,
    append_lines,
    remove_run,
    remove_sweep,
    write_durably,
)
from orchestrator.runs.sweeps import Point, make_sweep, share
from orchestrator.specs.kinds import kind_named
from orchestrator.specs.spec import names_of
from orchestrator.supervisor.background import start_supervisor
from orchestrator.supervisor.starting import start, values_for_later

if TYPE_CHECKING:  # commands that only read runs must not load pydantic
    from concurrent.futures import ThreadPoolExecutor

    from orchestrator.specs.plan import LaunchPlan

AT_ONCE: Final = 16  # runs that are recorded at a time, because each waits for the disk to sync its files


@dataclass(frozen=True)
class Sweep:
    """A sweep that was read and validated. No file of it was written and no run was started."""

    axes: tuple[Axis, ...]
    points: tuple[Point, ...]
    prepared: tuple[Prepared, ...]  # the prepared request of each point
    parallel: int | None
    plain: Prepared  # the prepared request without the values of a point
    options: tuple[str, ...] | SearchOptions
    search: Search | None = None  # the search that chooses the points' values; None for a sweep

    def to_json(self) -> dict[str, Any]:
        """Return the settings from which another machine builds the same points, as JSON types."""
        if isinstance(self.options, SearchOptions):
            return {"search": asdict(self.options), "parallel": self.parallel}
        return {"sweep": self.options, "parallel": self.parallel}


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search on the command line."""

    sampler: Sampler
    trials: int
    stop: Stop | None = None


def prepare_asked(root: Path, request: Request, asked: Mapping[str, Any]) -> Sweep:
    """Read and validate the sweep or search that another machine's `Sweep.to_json` describes."""
    if "sweep" in asked:
        return prepare_sweep(root, request, asked["sweep"], asked["parallel"])
    search = asked["search"]
    stop = Stop(search["stop"]) if search["stop"] is not None else None
    options = SearchOptions(Sampler(search["sampler"]), search["trials"], stop)
    return prepare_search(root, request, options, asked["parallel"])


def prepare_sweep(root: Path, request: Request, options: Sequence[str], parallel: int | None) -> Sweep:
    """Read and validate every point before anything is written. Raises UsageError if a point can't be run."""
    from orchestrator.prepare.sweeps.sweep import points_of, read_axes
    from orchestrator.specs.job import Training

    plain = prepare(root, request)
    trains = plain.loaded.job.training is not None
    axes = read_axes(options, names_of(Training), request.sets, trains=trains)
    points = points_of(axes)
    prepared = [_prepare_at(root, request, point, "--sweep") for point in points]
    _check_checkpoints(prepared, "--sweep")
    return Sweep(tuple(axes), tuple(points), tuple(prepared), parallel, plain, tuple(options))


def prepare_search(root: Path, request: Request, options: SearchOptions, parallel: int | None) -> Sweep:
    """Read and validate the search. The job is validated with both ends of each range and with each choice.

    Raises UsageError if the job can't be run with one of these values.
    """
    from orchestrator.prepare.sweeps.search import axes_of, extremes, search_of
    from orchestrator.specs.job import Training

    plain = prepare(root, request)
    search = search_of(
        plain.loaded.job, options.sampler, options.trials, options.stop, request.sets, names_of(Training)
    )
    for point in extremes(search):
        _prepare_at(root, request, point, "search.space")
    points, prepared = [Point(index, (), ()) for index in range(search.trials)], [plain] * search.trials
    _check_checkpoints(prepared, "--search")
    return Sweep(tuple(axes_of(search)), tuple(points), tuple(prepared), parallel, plain, options, search)


def _prepare_at(root: Path, request: Request, point: Point, where: str) -> Prepared:
    try:
        return prepare(root, _at(request, point))
    except UsageError as error:
        message = error.message
        if isinstance(error, SpecError) and error.where.startswith("--set"):
            message = message.removeprefix(f"{error.where}: ")  # the point's words say which value is wrong
        raise UsageError(f"{where}, {point.words()}: {message}", error.hint) from error


def _check_checkpoints(prepared: Sequence[Prepared], where: str) -> None:
    """Raise UsageError if several points would write their checkpoints into the same folder.

    A relative folder is below each run's own working folder, unless it leads out of the run's folder.
    """
    given = [(index, folder) for index, each in enumerate(prepared) if (folder := each.loaded.job.checkpoint.dir)]
    folders = Counter(_place_of(index, folder) for index, folder in given)
    if shared := next((folder for index, folder in given if folders[_place_of(index, folder)] > 1), None):
        raise UsageError(
            f"{where}: several points would write their checkpoints to {shared}",
            "leave `checkpoint.dir` out: each run then has a folder of its own",
        )


def _place_of(index: int, folder: str) -> str:
    """Return a path that is equal for two points if they would write to the same folder."""
    return folder if folder.startswith("~") else os.path.normpath(os.path.join(f"/runs/{index}/code", folder))


def _at(request: Request, point: Point) -> Request:
    """Return the request for one point of the sweep."""
    return replace(request, sets=(*request.sets, *point.sets), args=(*request.args, *point.args))


def submit_sweep(root: Path, asked: Sweep) -> list[RunDir]:
    """Record every point, then start the points: as one array if the scheduler supports arrays, otherwise by the
    supervisor.

    If the sweep can't be recorded, or the scheduler refuses it, all of its files are removed.
    """
    if asked.search is not None:
        from orchestrator.supervisor.study import check_installed

        check_installed()
    first = asked.prepared[0]
    sweep = new_run_id(first.loaded.job.name)
    names = [point_id(sweep, point.index) for point in asked.points]
    launches = [plan_for(root, each, name) for each, name in zip(asked.prepared, names, strict=True)]
    backend = backend_for(kind_of(launches[0].profile))
    launches = _completed(backend, launches)
    queued = submit.plan_to_start_now(root, backend, launches[0], first.after)
    kind = kind_named(first.profile.kind)
    may_be_array = bool(kind.scheduler) and queued is not None and asked.search is None
    is_array = may_be_array and len(launches) > 1  # PBS refuses an array of one job
    if is_array:
        backend.advice.check_alike(launches)
    parallel = asked.parallel or (None if is_array else kind.parallel)
    secrets = first.environment.secrets
    with submit.cancelled_if_interrupted(root, secrets) as begun, ExitStack() as held:
        folder, runs = _record(root, sweep, asked, launches, parallel, held)
        if is_array and queued is not None:
            begun.extend(runs)
            with submit.withdrawn_if_refused(root, runs):
                start(runs, [queued, *launches[1:]], secrets)
        else:
            _enqueue(root, folder, runs, secrets)
    start_supervisor(root, without=secrets)
    return runs


def _completed(backend: Backend, launches: list[LaunchPlan]) -> list[LaunchPlan]:
    """Return the plans with the scheduler's data about their machines. Plans with equal requests share one query."""
    first = backend.advice.completed(launches[0])
    same = (launches[0].profile, launches[0].job.resources)
    return [
        replace(each, profile=first.profile)
        if (each.profile, each.job.resources) == same
        else backend.advice.completed(each)
        for each in launches
    ]


def _record(
    root: Path, sweep: str, asked: Sweep, launches: list[LaunchPlan], parallel: int | None, held: ExitStack
) -> tuple[Path, list[RunDir]]:
    """Create the sweep's folder with one copy of the code, and the folders of all runs. Return the folder and the runs.

    A run gets its working folder, a copy of this copy, when it is started.

    All runs share one lock file. Until `held` is closed, this lock prevents other processes from starting the runs.
    """
    first = asked.prepared[0]
    is_remote = backend_for(kind_of(launches[0].profile)).is_remote
    place = None if is_remote else str(Path(launches[0].tasks[0].run_dir).parent.parent / "sweeps" / sweep)
    record = {
        "sweep": sweep,
        "created": time.time(),
        "fields": {axis.word: axis.field for axis in asked.axes},
        "points": [dict(point.values) for point in asked.points],
        "parallel": parallel,
    }
    folder, runs = make_sweep(root, sweep, place, record), list[RunDir]()
    try:
        held.enter_context(_all_being_started(folder, runs))
        if asked.search is not None:
            write_search(folder, asked.search)
        facts = copy_code(first, RunDir(folder))
        _check_linked(facts.get("linked"))
        write_durably(folder / "code.json", json.dumps({"files": facts.pop("listing")}).encode())

        def one(point: Point, prepared: Prepared, launch: LaunchPlan) -> RunDir:
            place = SweepPoint(sweep, point.index, dict(point.values), parallel, asked.search is not None)
            run = record_run(root, prepared, launch, lambda run: share(folder, run, (STARTING,)), place, indexed=False)
            runs.append(run)
            share(folder, run, ("code.json",))
            run.append_event(Snapshot(**facts))
            return run

        with _threads() as pool:
            runs[:] = list(pool.map(one, asked.points, asked.prepared, launches))
        append_lines(root / "index", [run.run_id for run in runs])
    except BaseException:  # also after an interrupt: nothing was started, so everything is removed
        for run in runs:
            remove_run(root, run)
        remove_sweep(root, sweep)
        raise
    return folder, runs


def _check_linked(linked: Sequence[str] | None) -> None:
    """Raise UsageError if a checkpoint in the code folder was linked and not copied, because all points would write to
    the user's own file.
    """
    if linked:
        raise UsageError(
            f"{linked[0]} is too large to be copied (code.max_size), so all runs of the sweep would write to your file",
            "raise `code.max_size` in the job, or move the file out of the code folder",
        )


@contextmanager
def _all_being_started(folder: Path, runs: Sequence[RunDir]) -> Iterator[None]:
    """Lock the start of all points within the block. Then remove the shared lock file, so that each point gets its own
    when it is started.
    """
    with being_started(RunDir(folder)):
        try:
            yield
        finally:
            for path in (folder, *(run.path for run in runs)):
                (path / STARTING).unlink(missing_ok=True)


def _threads() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(AT_ONCE)


def _enqueue(root: Path, folder: Path, runs: Sequence[RunDir], secrets: dict[str, str]) -> None:
    """Queue all runs for the supervisor. One file with the shell's variables is linked into each run.

    Raises StoreError if that fails. The runs, none of which was started, are then removed.
    """
    try:
        for run in runs:
            run.append_event(Queued())
        write_durably(
            folder / dependencies.VALUES_FOR_START, json.dumps(values_for_later(secrets)).encode(), private=True
        )
        for run in runs:
            share(folder, run, (dependencies.VALUES_FOR_START,))
    except BaseException:  # also after an interrupt
        for run in runs:
            remove_run(root, run)
        raise
    finally:
        (folder / dependencies.VALUES_FOR_START).unlink(missing_ok=True)

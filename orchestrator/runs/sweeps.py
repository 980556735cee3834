"""A sweep's folder, and the runs that a name means: one run, or all runs of a sweep.

    ROOT/sweeps/SWEEP/     sweep.json, and files that the points share: the code as it was submitted and, on
                           Slurm, script, agent, handle

Points are ordinary runs, named SWEEP.0, SWEEP.1, ...
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import RunNotFoundError, StoreError
from orchestrator.node.system.private import make_private
from orchestrator.protocol.frozen import Value
from orchestrator.runs.run_id import index_of, point_id, sweep_of
from orchestrator.runs.store import (
    Record,
    RunDir,
    check_own,
    find_run,
    names_in,
    newest_named,
    newest_runs,
    write_durably,
)


def make_sweep(root: Path, sweep: str, folder: str | None, record: Record) -> Path:
    """Create a sweep's folder and record, and return the real folder. If `folder` is elsewhere, the sweep's folder
    is a link to it.
    """
    check_own(root)
    path = root / "sweeps" / sweep
    real = Path(folder) if folder is not None else path
    try:
        make_private(str(path.parent), exist_ok=True)
        make_private(str(real))
        if real != path:
            path.symlink_to(real)
    except OSError as error:
        raise StoreError(f"{path} can't be created: {error.strerror}", "set ORCH_HOME to a folder of yours") from error
    write_durably(real / "sweep.json", json.dumps(record, indent=1).encode())
    return real


def share(folder: Path, run: RunDir, names: Sequence[str]) -> None:
    """Create hard links to a sweep's files with these names in the folder of one of its runs."""
    try:
        for name in names:
            (run.path / name).hardlink_to(folder / name)
    except OSError as error:
        raise StoreError(f"{run.path / name} can't be created: {error.strerror}") from error


def points_in(root: Path, sweep: str) -> list[RunDir]:
    """Return the existing runs of a sweep, in order."""
    mine = [name for name in names_in(root / "runs") if sweep_of(name) == sweep]
    return [RunDir(root / "runs" / name) for name in sorted(mine, key=index_of)]


def runs_named(root: Path, name: str) -> list[RunDir]:
    """Return the run with this full id, or all points of the sweep with this id. Some of these runs may have been
    removed.
    """
    try:
        sweep = RunDir(root / "sweeps" / name).read("sweep.json")
    except StoreError:  # the record is damaged: return the existing points
        return points_in(root, name)
    points = sweep.get("points") if sweep is not None else None
    count = len(points) if isinstance(points, list) else 0
    names = [point_id(name, index) for index in range(count)] or [name]
    return [RunDir(root / "runs" / each) for each in names]


def find_sweep(root: Path, reference: str, *, newest: bool = True) -> str | None:
    """Return the sweep with this id or unique prefix. The name `last` selects the sweep of the newest run. Return None
    if there is no such sweep.

    With `newest`, the name of a job is accepted too, and selects what was submitted last under this name. Return None
    if that is a single run.
    """
    if reference == "last":
        last = newest_runs(root, 1)
        return sweep_of(last[0].run_id) if last else None
    if newest and (named := newest_named(root, reference)) is not None:
        return sweep_of(named.run_id)
    names = names_in(root / "runs")
    matches = {sweep_of(name) or name for name in names if reference and name.startswith(reference)}
    sweep = matches.pop() if len(matches) == 1 else None
    return sweep if sweep is not None and sweep.startswith(reference) and sweep not in names else None


def find_runs(root: Path, reference: str, *, newest: bool = True) -> list[RunDir]:
    """Return the run, or all runs of the sweep, with this id or unique prefix. Raises RunNotFoundError unless exactly
    one run or sweep matches.

    With `newest`, a job's name selects its newest run or sweep. Commands that remove runs pass False, so that only an
    id or a prefix of an id is accepted.
    """
    sweep = find_sweep(root, reference, newest=newest)
    return points_in(root, sweep) if sweep is not None else [find_run(root, reference, newest=newest)]


def newest_sweep(root: Path) -> str:
    """Return the sweep to which the newest point (run of a sweep) belongs. Raises RunNotFoundError if there is no
    point.
    """
    for run in newest_runs(root):
        if (sweep := sweep_of(run.run_id)) is not None:
            return sweep
    raise RunNotFoundError(
        "there are no sweeps yet",
        "name the runs (orch best RUN RUN), or start a sweep: orch submit JOB -p PROFILE --sweep lr=1e-2,1e-3",
    )


class Point(Value):
    """One point of a sweep: a value for each of the sweep's keys."""

    index: int
    values: tuple[tuple[str, str], ...]  # (key, value)
    sets: tuple[str, ...]  # the values in the form of --set
    args: tuple[str, ...] = ()  # appended to the job's arguments

    def words(self) -> str:
        """Describe the point: `lr=1e-2 seed=3`."""
        return " ".join(f"{word}={value}" for word, value in self.values)

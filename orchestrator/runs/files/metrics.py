"""Finds the metric by which a job is judged, reads the values of metrics, and ranks runs by a metric."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from orchestrator.errors import StoreError, UsageError
from orchestrator.protocol.json_text import objects_in
from orchestrator.protocol.metric import Better, JobMetric, better_of, is_known, kept_by
from orchestrator.protocol.reading import opened
from orchestrator.runs.files.logs import result_of
from orchestrator.runs.files.written_metrics import (
    HOW_TO_WRITE,
    OF_LINE,
    files_of_metrics,
    is_number,
    main_kinds,
    newest_of,
)
from orchestrator.runs.store import RunDir, read_lines

MOST_OF_A_LINE: Final = 1 << 20  # bytes; the rest of a longer line is read as another line, which is not JSON
_BOOKKEEPING: Final = frozenset({"attempt", "epoch", "epochs", "step", "steps", "time", "seconds", "restarts"})


@dataclass(frozen=True)
class Ranked:
    """A run and its value of a metric. The best run has rank 1. A run without a value has no rank."""

    run_id: str
    state: str
    values: Mapping[str, str]  # the values of the run's sweep point
    value: float | None
    rank: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON types."""
        return asdict(self)


def metric_of_job(record: Mapping[str, Any] | None) -> JobMetric | None:
    """Return the metric by which a recorded job's runs are compared: `metric`, else `checkpoint.keep_best`."""
    return _named(record) or _keeps_best_by(record)


def metric_of_checkpoints(record: Mapping[str, Any] | None) -> JobMetric | None:
    """Return the metric that decides which checkpoint of a run is the best: `checkpoint.keep_best`, else `metric`."""
    return _keeps_best_by(record) or _named(record)


def _named(record: Mapping[str, Any] | None) -> JobMetric | None:
    metric = _mapping(_mapping(record).get("job")).get("metric")
    name, better = (_mapping(metric).get(key) for key in ("name", "better"))
    return kept_by(name, str(better)) if isinstance(name, str) else None


def _keeps_best_by(record: Mapping[str, Any] | None) -> JobMetric | None:
    name = _mapping(_mapping(_mapping(record).get("job")).get("checkpoint")).get("keep_best")
    if not isinstance(name, str):
        return None
    named = _named(record)
    return named if named is not None and named.name == name else JobMetric(name)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# -- ranking runs


def metrics_of(run: RunDir) -> dict[str, float]:
    """Return a run's metrics: the numbers in its result, and the newest value of every other metric that it wrote.

    The metrics are named as by `newest_of`, and `step` is the newest step.
    """
    try:
        files, result = [list(read_lines(path, run.path)) for path in files_of_metrics(run)], result_of(run) or {}
    except StoreError:
        return {}
    found: dict[str, float] = {}
    for rows in reversed(files):
        steps = [float(row["step"]) for row in rows if is_number(row.get("step"))]
        found |= newest_of(rows) | ({"step": steps[-1]} if steps else {})
    return found | {name: float(value) for name, value in result.items() if is_number(value)}


class Value(NamedTuple):
    """One value of a metric, with the step and the wall-clock time at which it was written (None if unknown)."""

    step: float
    time: float | None
    value: float


class Series:
    """The metrics of a run, each as a list of (step, value). Repeated calls of `look` read only lines that were
    appended since the previous call.
    """

    def __init__(self, run: RunDir) -> None:
        self._files = [_Columns(str(path), str(run.path)) for path in files_of_metrics(run)]

    def look(self) -> None:
        """Read the new lines. Files that can't be read are skipped."""
        for file in self._files:
            file.look()

    def values(self, metric: str) -> list[Value]:
        """Return the values of a metric in the order of the steps.

        `kind.metric` selects one kind of line; otherwise the most frequent kind is used. If a restart has repeated
        steps, the later values are used. If both metric files have the metric, rank 0's own file is used.
        """
        return next(filter(None, (file.values(metric) for file in self._files)), [])

    def names(self) -> set[str]:
        """Return the names of all metrics."""
        return {name for file in self._files for name in file.names()}

    def names_of_kinds(self) -> set[str]:
        """Return `kind.metric` for each metric and each less frequent kind of its lines.

        If a metric is in several kinds of lines, its name alone selects the most frequent kind.
        """
        return {name for file in self._files for name in file.names_of_kinds()}


class _Columns:
    """The values in one metrics file, by kind of line and name."""

    def __init__(self, path: str, below: str) -> None:
        self._path, self._below = path, below
        self._offset, self._inode = 0, -1
        self._columns: dict[tuple[str, str], dict[float, Value]] = {}

    def look(self) -> None:
        with contextlib.suppress(OSError), opened(self._path, self._below) as file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._inode or found.st_size < self._offset:
                self._offset, self._inode, self._columns = 0, found.st_ino, {}
            file.seek(self._offset)
            while line := file.readline(MOST_OF_A_LINE):
                self._take(line)
                if not line.endswith(b"\n") and len(line) < MOST_OF_A_LINE:
                    break  # the line is incomplete, and is read again later
                self._offset += len(line)

    def values(self, metric: str) -> list[Value]:
        asked_kind, _, rest = metric.partition(".")
        columns = [
            column
            for (kind, name), column in self._columns.items()
            if name == metric or (rest and (kind, name) == (asked_kind, rest))
        ]
        most = max(columns, key=len, default={})
        return [most[step] for step in sorted(most)]

    def names(self) -> set[str]:
        return {name for _, name in self._columns}

    def names_of_kinds(self) -> set[str]:
        mains = main_kinds({column: len(values) for column, values in self._columns.items()})
        return {f"{kind}.{name}" for kind, name in self._columns if kind != mains[name]}

    def _take(self, line: bytes) -> None:
        found = next(objects_in([line]), {})
        if not is_number(step := found.get("step")):
            return
        time, kind = found.get("time"), str(found.get("kind"))
        written = float(time) if is_number(time) else None
        for name, value in found.items():
            if name not in OF_LINE and is_number(value):
                column = self._columns.setdefault((kind, name), {})
                column[float(step)] = Value(float(step), written, float(value))


def series(run: RunDir, metric: str) -> list[tuple[float, float]]:
    """Return (step, value) of a metric, selected as by `Series.values`."""
    return [(value.step, value.value) for value in _whole_series(run).values(metric)]


def names_of_series(run: RunDir) -> set[str]:
    """Return the names of the metrics that a run has written with a step number."""
    return _whole_series(run).names()


def default_metric(names: Iterable[str]) -> str:
    """Return the metric to show by default: `loss`, else a metric with `loss` in its name, else any metric.

    `train/loss` is preferred to `val_loss` and `rank_1/train/loss`.
    """
    in_order = sorted(names, key=lambda name: ("train" not in name, name.count("/"), name))
    losses = [name for name in in_order if "loss" in name]
    return "loss" if "loss" in losses or not in_order else [*losses, *in_order][0]


def _whole_series(run: RunDir) -> Series:
    found = Series(run)
    found.look()
    return found


def ranked(rows: Iterable[Ranked], *, better: Better) -> list[Ranked]:
    """Return the rows with ranks, the best first. Equal values share a rank; rows without a value come last."""
    rows = list(rows)
    with_value = [row for row in rows if row.value is not None]
    found: list[Ranked] = []
    in_order = sorted(with_value, key=lambda row: row.value or 0.0, reverse=better is Better.HIGHER)
    for position, row in enumerate(in_order, 1):
        same = found and found[-1].value == row.value
        found.append(Ranked(row.run_id, row.state, row.values, row.value, found[-1].rank if same else position))
    return [*found, *(row for row in rows if row.value is None)]


def metric_that_exists(found: Sequence[Mapping[str, float]], of_job: JobMetric | None) -> str | None:
    """Return the job's metric if any run has it. Otherwise choose one of the runs' metrics, and prefer accuracy to
    loss. Return None if the runs have no metric.
    """
    names = {name for each in found for name in each}
    if of_job is not None and of_job.name in names:
        return of_job.name

    def rating(name: str) -> tuple[bool, bool, bool, str]:
        return not is_known(name), better_of(name) is Better.LOWER, "train" in name, name

    return min(names - _BOOKKEEPING, key=rating, default=None)


def check_metric(metric: str, found: Sequence[Mapping[str, float]]) -> None:
    """Raise UsageError, which lists the known names, if no run has the metric."""
    if not any(metric in each for each in found):
        raise UsageError(f"none of these runs has a metric '{metric}'", names_of(found))


def names_of(found: Sequence[Mapping[str, float]]) -> str:
    """Return a hint that lists the names of the runs' metrics."""
    names = sorted({name for each in found for name in each}, key=lambda name: (name in _BOOKKEEPING, name))
    return f"they have: {', '.join(names)}" if names else f"none of them has left a number yet; {HOW_TO_WRITE}"

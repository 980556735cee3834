"""Finds a run's metrics files: rank 0's metrics.jsonl, and the file in which the agent collects metrics from the
program's own files.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeGuard

from orchestrator.protocol.json_text import objects_in
from orchestrator.protocol.layout import metrics_file, node_folder, read_metrics_file
from orchestrator.protocol.reading import read_part
from orchestrator.runs.files.file_cache import FileCache
from orchestrator.runs.store import RunDir

HOW_TO_WRITE: Final = (
    "write some with run.metric(loss=...), TensorBoard's SummaryWriter, Trainer, Lightning's CSVLogger, wandb offline, "
    "or as lines of a metrics.jsonl below the working folder or $ORCH_OUTPUT_DIR"
)
OF_LINE: Final = frozenset({"step", "attempt", "time", "kind"})
"""The keys in a line of metrics that are not metrics."""
_PART: Final = (
    1 << 14
)  # bytes: the kinds of lines are counted in the first part, and the last part has the newest values


def files_of_metrics(run: RunDir) -> tuple[Path, Path]:
    """Return (rank 0's file, the file of node 0's agent). If both have a metric, the values in rank 0's file are
    used.
    """
    return Path(metrics_file(str(run.path))), Path(read_metrics_file(node_folder(str(run.path), 0)))


def has_metrics(run: RunDir) -> bool:
    """Return whether the run has a metrics file."""
    return any(path.exists() for path in files_of_metrics(run))


def main_kinds(counts: Mapping[tuple[str, str], int]) -> dict[str, str]:
    """Return the most frequent kind of line of each metric, from the number of values of each (kind, metric).

    A metric's name alone selects this kind, and `kind.metric` selects another kind. Of equally frequent kinds, the
    first is returned.
    """
    found: dict[str, str] = {}
    for (kind, name), count in counts.items():
        if name not in found or count > counts[found[name], name]:
            found[name] = kind
    return found


def newest_of(rows: Iterable[Mapping[str, Any]], counted: Iterable[Mapping[str, Any]] = ()) -> dict[str, float]:
    """Return the newest value of each metric, by `metric` for the most frequent kind of line and by `kind.metric` for
    any other kind.

    If the rows are only the end of a file, `counted` has the rows at its beginning. The kinds are then counted there,
    because an evaluation may write many lines in a row.
    """
    newest, counts = _columns(rows)
    mains = main_kinds(counts) | main_kinds(_columns(counted)[1])
    return {name if kind == mains[name] else f"{kind}.{name}": value for (kind, name), value in newest.items()}


def _columns(rows: Iterable[Mapping[str, Any]]) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], int]]:
    """Return the newest value and the number of steps of each (kind, metric)."""
    newest, steps = dict[tuple[str, str], float](), dict[tuple[str, str], set[Any]]()
    for row in rows:
        kind, step = str(row.get("kind")), row.get("step")
        for name, value in row.items():
            if name not in OF_LINE and is_number(value):
                newest[kind, name] = float(value)
                steps.setdefault((kind, name), set()).add(step if is_number(step) else None)
    return newest, {column: len(those) for column, those in steps.items()}


def newest_metrics(run: RunDir, attempt: int) -> dict[str, Any] | None:
    """Return the newest `step` and `metrics` that node 0's agent read from the program's own files in this attempt.
    Return None if the agent read none.
    """
    first, last = _first_and_last(files_of_metrics(run)[1], run.path)
    rows = [row for row in last if row.get("attempt") == attempt and is_number(row.get("step"))]
    return {"step": int(rows[-1]["step"]), "metrics": newest_of(rows, first)} if rows else None


def last_values(run: RunDir, known: FileCache | None = None) -> dict[str, float]:
    """Return the newest value of each metric in the last 16 KiB of each metrics file of the run, named as by
    `newest_of`. With a cache, only changed files are read.
    """
    cache, values = known or FileCache(), dict[str, float]()
    for path in reversed(files_of_metrics(run)):
        values |= cache.of_file(str(path), partial(_last_values_in, path, run.path), {})
    return values


def _last_values_in(path: Path, below: Path) -> dict[str, float]:
    first, last = _first_and_last(path, below)
    return newest_of(last, first)


def _first_and_last(path: Path, below: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows in the first and in the last part of a file. A short file has all rows in both parts."""
    try:
        last = read_part(path, -_PART, _PART, below)
        first = last if len(last) < _PART else read_part(path, 0, _PART, below)
    except OSError:
        return [], []
    return list(objects_in(first.split(b"\n"))), list(objects_in(last.split(b"\n")))


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number that fits into a float."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return -sys.float_info.max <= value <= sys.float_info.max  # a number in JSON may have any length

"""Finds a run's metrics files: rank 0's metrics.jsonl, and the file in which the agent collects metrics from the
program's own files.
"""

from __future__ import annotations

import contextlib
import sys
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
_TAIL: Final = 1 << 14  # bytes at the end of a file in which the newest values are searched


def files_of_metrics(run: RunDir) -> tuple[Path, Path]:
    """Return (rank 0's file, the file of node 0's agent). If both have a metric, the values in rank 0's file are
    used.
    """
    return Path(metrics_file(str(run.path))), Path(read_metrics_file(node_folder(str(run.path), 0)))


def has_metrics(run: RunDir) -> bool:
    """Return whether the run has a metrics file."""
    return any(path.exists() for path in files_of_metrics(run))


def newest_metrics(run: RunDir, attempt: int) -> dict[str, Any] | None:
    """Return the newest `step` and `metrics` that node 0's agent read from the program's own files in this attempt.
    Return None if the agent read none.
    """
    step, values = None, dict[str, float]()
    try:
        lines = read_part(files_of_metrics(run)[1], -_TAIL, _TAIL, run.path).split(b"\n")
    except OSError:
        return None
    for row in objects_in(lines):
        with contextlib.suppress(ValueError):
            if row.get("attempt") == attempt and is_number(row.get("step")):
                step = int(row["step"])
                values |= {name: value for name, value in row.items() if name not in OF_LINE and is_number(value)}
    return None if step is None else {"step": step, "metrics": values}


def last_values(run: RunDir, known: FileCache | None = None) -> dict[str, float]:
    """Return the newest value of each metric in the last 16 KiB of each metrics file of the run. With a cache, only
    changed files are read.
    """
    cache, values = known or FileCache(), dict[str, float]()
    for path in reversed(files_of_metrics(run)):
        values |= cache.of_file(str(path), partial(_last_values_in, path, run.path), {})
    return values


def _last_values_in(path: Path, below: Path) -> dict[str, float]:
    values: dict[str, float] = {}
    with contextlib.suppress(OSError):
        for row in objects_in(read_part(path, -_TAIL, _TAIL, below).split(b"\n")):
            numbers = {key: value for key, value in row.items() if key not in OF_LINE and is_number(value)}
            values |= {key: float(value) for key, value in numbers.items()}
    return values


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number that fits into a float."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return -sys.float_info.max <= value <= sys.float_info.max  # a number in JSON may have any length

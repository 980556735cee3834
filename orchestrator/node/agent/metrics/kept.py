"""Writes the metrics that were read from the program's own files into one file, downsampled and without repeats.

A metric's first OCTAVE points are all kept. Then the minimum distance between kept steps doubles after each OCTAVE
points, so a few thousand points remain of a million steps. When the run ends, the last point is kept too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

from orchestrator.node.agent.metrics.following import Point
from orchestrator.protocol.files import append
from orchestrator.protocol.json_text import objects_in
from orchestrator.protocol.reading import read_part, read_regular

MOST_METRICS = 1000
MOST_POINTS = 200_000  # for all metrics together; the submitting machine needs 200 bytes of memory for each
MOST_BYTES = 16 << 20
MOST_OF_A_NAME = 200  # characters
OCTAVE, LEAST_OCTAVE = 2048, 16  # points; with many metrics, the octaves of all metrics share 8 * OCTAVE points
_OWN = ("step", "time", "attempt", "kind")


@dataclass
class _Metric:
    """The downsampling state of a metric. After each octave (OCTAVE points or less), the gap between steps doubles.
    `count` is the number of points in the present octave, and `first` is its first step.
    """

    gap: float = 0.0
    count: int = 0
    first: float = 0.0
    last: float | None = None
    left_out: tuple[float, float | None, float, int] | None = None  # step, time, value, attempt


class KeptMetrics:
    """Appends lines to a node's file of metrics, in the format of metrics.jsonl: step, attempt, time and the values.

    `learn` receives the lines that an earlier agent has added by `add_line`.
    """

    def __init__(self, path: str, learn: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
        self.path, self.learn = path, learn
        self.metrics: dict[str, _Metric] = {}
        self.known: set[int] = set()  # hashes of the points in the file
        self.size = 0
        self.is_torn = False
        self.lines: list[bytes] = []
        self.row: dict[str, Any] = {}
        self._load()

    def add(self, point: Point, attempt: int) -> None:
        """Queue a point if downsampling keeps it. `flush` writes the queued points."""
        for name, value in point.values.items():
            if self._takes(name, point, value, attempt):
                self._put(name, point.step, point.time, value, attempt)

    def add_line(self, line: Mapping[str, Any]) -> None:
        """Queue a line that has a `kind` and no step."""
        self._end_row()
        self.lines.append(_encoded(line))

    def flush(self) -> None:
        """Append the queued points to the file. Raises OSError if they can't be written."""
        self._end_row()
        if not self.lines:
            return
        data = (b"\n" if self.is_torn else b"") + b"".join(self.lines)
        self.lines = []
        self.is_torn = append(self.path, data) < len(data)
        self.size += len(data)

    def end(self) -> None:
        """Queue the last point of each metric, if downsampling has dropped it, and write all queued points."""
        for name, metric in self.metrics.items():
            if metric.left_out is not None:
                step, time, value, attempt = metric.left_out
                metric.left_out = None
                self._put(name, step, time, value, attempt)
        self.flush()

    def _takes(self, name: str, point: Point, value: float, attempt: int) -> bool:
        if not math.isfinite(value) or name in _OWN or not 0 < len(name) <= MOST_OF_A_NAME:
            return False
        metric = self.metrics.get(name)
        if metric is None:
            if len(self.metrics) >= MOST_METRICS:
                return False
            metric = self.metrics[name] = _Metric(first=point.step)
        key = hash((name, point.step, value))
        if key in self.known:
            return False
        is_near = metric.last is not None and 0 <= point.step - metric.last < metric.gap
        if is_near or len(self.known) >= MOST_POINTS or self.size >= MOST_BYTES:
            metric.left_out = (point.step, point.time, value, attempt)
            return False
        self.known.add(key)
        self._count(metric, point.step)
        return True

    def _count(self, metric: _Metric, step: float) -> None:
        metric.last, metric.left_out = step, None
        metric.count += 1
        octave = max(LEAST_OCTAVE, min(OCTAVE, 8 * OCTAVE // len(self.metrics)))
        if metric.count >= octave:
            metric.gap = max(2 * metric.gap, 2 * (step - metric.first) / octave)
            metric.count, metric.first = 0, step

    def _put(self, name: str, step: float, time: float | None, value: float, attempt: int) -> None:
        """Queue a metric's value. All metrics of the same step are written as one line."""
        if self.row and (self.row["step"], self.row["attempt"]) == (step, attempt) and name not in self.row:
            self.row[name] = value
        else:
            self._end_row()
            self.row = {"step": step, name: value, "attempt": attempt}
        if time is not None and math.isfinite(time):
            self.row["time"] = round(time, 3)

    def _end_row(self) -> None:
        if self.row:
            self.lines.append(_encoded(self.row))
            self.row = {}

    def _load(self) -> None:
        """Read the points that an earlier agent of this run has written, so that no point is written twice."""
        try:
            data = read_regular(self.path, 2 * MOST_BYTES)
            self.is_torn = data != b"" and read_part(self.path, -1, 1) != b"\n"
        except OSError:
            return
        self.size = len(data)
        for row in objects_in(data.split(b"\n")):
            self._learn(row)

    def _learn(self, row: dict[str, Any]) -> None:
        if "kind" in row:
            self.learn(row)
            return
        step = row.get("step")
        if not isinstance(step, (int, float)) or isinstance(step, bool) or len(self.known) >= MOST_POINTS:
            return
        for name, value in row.items():
            if name not in _OWN and type(value) in (int, float) and len(self.metrics) < MOST_METRICS:
                self.known.add(hash((name, step, float(value))))
                self._count(self.metrics.setdefault(name, _Metric(first=step)), step)


def _encoded(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"

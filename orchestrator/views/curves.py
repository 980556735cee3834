"""Metrics as curves: by step or by time, smoothed, and thinned so that a spike stays. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.runs.files.metrics import Value

Point = tuple[float, float]


class Axis(StrEnum):
    """Says what a curve's x is."""

    STEP = "step"
    TIME = "time"  # in seconds since the run's first value


@dataclass(frozen=True)
class Curve:
    """One run's values of a metric; the numbers beside the points are those of all values, as they were written."""

    run_id: str
    points: tuple[Point, ...]
    count: int
    last: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class Curves:
    """A metric of several runs over each other."""

    metric: str
    axis: Axis
    curves: tuple[Curve, ...]
    names: tuple[str, ...] = ()  # of all metrics that these runs have written by step


def curve_of(
    run_id: str, values: Sequence[Value], axis: Axis = Axis.STEP, *, smoothing: float = 0.0, most: int = 1000
) -> Curve | None:
    """Return a run's curve of at most `most` points (4 at least); None without a value."""
    if not values:
        return None
    if axis is Axis.STEP:
        points = [(value.step, value.value) for value in values]
    else:
        timed = sorted((value.time, value.value) for value in values if value.time is not None)
        points = [(time - timed[0][0], each) for time, each in timed]
    ys = [value.value for value in values]
    shown = thinned(list(smoothed(points, smoothing)), most)
    return Curve(run_id, tuple(shown), len(ys), ys[-1], min(ys), max(ys))


def smoothed(points: Iterable[Point], weight: float) -> Iterator[Point]:
    """Yield the exponential moving average of the points, without a bias to nought at the beginning; 0: as they are."""
    weight = min(max(weight, 0.0), 0.999)
    mean, seen = 0.0, 0.0
    for x, y in points:
        mean, seen = weight * mean + (1 - weight) * y, weight * seen + (1 - weight)
        yield x, mean / seen


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most `most` of the points (4 at least): first and last, and of each bucket between the extremes."""
    most = max(4, most)
    if len(points) <= most:
        return list(points)
    inner, buckets = points[1:-1], (most - 2) // 2
    found = [points[0]]
    for number in range(buckets):
        bucket = inner[number * len(inner) // buckets : (number + 1) * len(inner) // buckets]
        extremes = {min(bucket, key=_y), max(bucket, key=_y)}
        found += sorted(extremes)
    return [*found, points[-1]]


def _y(point: Point) -> float:
    return point[1]

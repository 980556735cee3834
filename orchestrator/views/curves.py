"""Makes curves of metrics by step, epoch or time, smoothed, and downsampled so that spikes remain visible."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar

from orchestrator.protocol.metric import Better
from orchestrator.runs.files.metrics import Value

LEAST_OF_A_TREND: Final = 4  # the least number of values that have a trend
PARTS_OF_A_TREND: Final = 40
Row = TypeVar("Row")


class Axis(StrEnum):
    """The quantity on a curve's x axis."""

    STEP = "step"
    EPOCH = "epoch"
    TIME = "time"  # seconds since the run's first value
    CLOCK = "clock"  # wall-clock time


@dataclass(frozen=True)
class Curve:
    """The downsampled values of a metric of one run, stored as columns in the order of steps.

    `count`, `last`, `lowest` and `highest` describe all values before the downsampling. `epochs` and `seconds` are
    empty if the run has not written them. `smooth` is empty without smoothing.
    """

    run_id: str
    steps: tuple[float, ...]
    values: tuple[float, ...]
    smooth: tuple[float, ...]
    epochs: tuple[float, ...]
    seconds: tuple[float, ...]  # the time of each point since the run's first value
    began: float | None  # wall-clock time of the first value
    count: int
    last: float
    lowest: float
    highest: float

    def points(self, axis: Axis) -> tuple[tuple[float, float], ...]:
        """Return the points (x, y), with x in the quantity of the axis; empty if the run has not written that quantity.

        The values y are smoothed if the curve is smoothed.
        """
        if axis is Axis.CLOCK:
            xs = tuple((self.began or 0.0) + seconds for seconds in self.seconds)
        else:
            xs = {Axis.STEP: self.steps, Axis.EPOCH: self.epochs, Axis.TIME: self.seconds}[axis]
        points = zip(xs, self.smooth or self.values, strict=False)
        return tuple(points if axis is Axis.STEP else sorted(points, key=itemgetter(0)))


@dataclass(frozen=True)
class Curves:
    """The curves of a metric for several runs, and the names of all metrics that these runs have written by step.

    `kinds` names further curves as `kind.metric`, such as `eval.loss` in addition to the more frequent training `loss`.
    """

    metric: str
    curves: tuple[Curve, ...]
    names: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trend:
    """The course of a metric: the means of equal parts of its values, and its relative change in the last tenth of the
    values.

    `change` is the mean of the last tenth minus the mean of the tenth before it, divided by the latter. It is None if
    the latter is 0.
    """

    metric: str
    better: Better
    means: tuple[float, ...]
    steps: float  # the number of steps in the last tenth
    change: float | None


def trend_of(metric: str, better: Better, values: Sequence[Value]) -> Trend | None:
    """Return the trend of a metric; None with fewer than four values."""
    if len(values) < LEAST_OF_A_TREND:
        return None
    parts = min(PARTS_OF_A_TREND, len(values))
    bounds = [len(values) * part // parts for part in range(parts + 1)]
    means = tuple(_mean(values[start:end]) for start, end in pairwise(bounds))
    tenth = max(1, len(values) // 10)
    newest, before = _mean(values[-tenth:]), _mean(values[-2 * tenth : -tenth])
    change = (newest - before) / abs(before) if before else None
    return Trend(metric, better, means, values[-1].step - values[-1 - tenth].step, change)


def _mean(values: Sequence[Value]) -> float:
    return sum(each.value for each in values) / len(values)


class _Point(NamedTuple):
    value: Value
    smooth: float
    epoch: float


def curve_of(
    run_id: str, values: Sequence[Value], epochs: Sequence[Value] = (), *, smoothing: float = 0.0, most: int = 1000
) -> Curve | None:
    """Return a run's curve of at most `most` points (but at least 4); None if the run has no value."""
    if not values:
        return None
    ys = [value.value for value in values]
    means = list(smoothed(ys, smoothing)) if smoothing > 0 else ys
    by_step = epochs_at([value.step for value in values], epochs) or [0.0] * len(values)
    points = thinned([_Point(*each) for each in zip(values, means, by_step, strict=True)], most, _raw)
    times = [value.time for value in values if value.time is not None]
    began, is_timed = min(times, default=None), len(times) == len(values)
    return Curve(
        run_id,
        steps=tuple(point.value.step for point in points),
        values=tuple(point.value.value for point in points),
        smooth=tuple(point.smooth for point in points) if smoothing > 0 else (),
        epochs=tuple(point.epoch for point in points) if epochs else (),
        seconds=tuple((point.value.time or 0.0) - (began or 0.0) for point in points) if is_timed else (),
        began=began,
        count=len(ys),
        last=ys[-1],
        lowest=min(ys),
        highest=max(ys),
    )


def _raw(point: _Point) -> float:
    return point.value.value


def smoothed(values: Iterable[float], weight: float) -> Iterator[float]:
    """Yield the exponential moving average, without its usual bias towards 0 at the beginning."""
    weight = min(max(weight, 0.0), 0.999)
    mean, seen = 0.0, 0.0
    for value in values:
        mean, seen = weight * mean + (1 - weight) * value, weight * seen + (1 - weight)
        yield mean / seen


def epochs_at(steps: Iterable[float], told: Sequence[Value]) -> list[float]:
    """Return the epoch at each step as a fraction, interpolated from the reported epochs `told`; empty if none were
    reported.

    Most programs report whole epochs, so all steps of an epoch would have the same x value. Interpolation spreads the
    steps of an epoch between its number and the next number.
    """
    knots = [(one.step, one.value) for at, one in enumerate(told) if at == 0 or told[at - 1].value != one.value]
    if not knots:
        return []
    if all(value.is_integer() for _, value in knots):  # assume the newest epoch is as long as the epoch before it
        length = knots[-1][0] - knots[-2][0] if len(knots) > 1 else told[-1].step - knots[0][0] + 1
        knots.append((max(knots[-1][0] + length, told[-1].step), knots[-1][1] + 1))
    else:
        knots.append((told[-1].step, told[-1].value))
    places = [step for step, _ in knots]
    return [_between(knots, bisect_right(places, step), step) for step in steps]


def _between(knots: Sequence[tuple[float, float]], after: int, step: float) -> float:
    if after in (0, len(knots)):
        return knots[min(after, len(knots) - 1)][1]
    (start, one), (end, other) = knots[after - 1], knots[after]
    return one + (other - one) * (step - start) / (end - start)


def thinned(rows: Sequence[Row], most: int, value: Callable[[Row], float]) -> list[Row]:
    """Return at most `most` of the rows (but at least 4): the first, the last, and the smallest and largest of each
    bucket of neighbours.
    """
    most = max(4, most)
    if len(rows) <= most:
        return list(rows)
    inner, buckets = range(1, len(rows) - 1), (most - 2) // 2
    kept = [0]
    for number in range(buckets):
        bucket = inner[number * len(inner) // buckets : (number + 1) * len(inner) // buckets]
        kept += sorted({min(bucket, key=lambda at: value(rows[at])), max(bucket, key=lambda at: value(rows[at]))})
    return [rows[at] for at in [*kept, len(rows) - 1]]

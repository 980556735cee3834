"""Makes heat maps of ranks by time, such as of their step times or of the use of their GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

# The share of cells at each end that the colour scale ignores, because a single slow step would dominate the scale.
OUTLIERS: Final = 0.02


@dataclass(frozen=True)
class HeatRow:
    """The cells of one row, which shows the ranks `first` to `last`. A cell without data is None."""

    first: int
    last: int
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class HeatMap:
    """A heat map of ranks by time. `times` has the time at which each column begins. `end` is the time at which the
    last column ends.

    `low` and `high` are the extremes, and the colours range from `scale[0]` to `scale[1]`. Both ignore the columns in
    `startup`, which have only the first steps of an attempt, because these steps include warm-up and compilation.
    """

    what: str
    unit: str
    times: tuple[float, ...]
    rows: tuple[HeatRow, ...]
    low: float | None = None
    high: float | None = None
    of: str = "rank"  # the rows are ranks, GPUs or nodes
    end: float = 0.0
    scale: tuple[float, float] = (0.0, 0.0)
    startup: tuple[int, ...] = ()


class Span(NamedTuple):
    """A span of wall-clock time, and the mean value of each rank in it."""

    begin: float
    end: float
    values: Mapping[int, float]
    is_startup: bool = False


def span_map(
    what: str, unit: str, spans: Sequence[Span], *, columns: int, rows: int | None = None,
    worst: Callable[[Iterable[float]], float] = max, of: str = "rank", least: float = 1.0,
) -> HeatMap:  # fmt: skip
    """Return the spans as a heat map. A cell shows the mean value of a rank. If several ranks share a row, the cell
    shows the worst of their means.

    The upper end of the colour scale is at least `least` times its lower end, so that noise does not look like a
    difference.
    """
    ranks = sorted({rank for span in spans for rank in span.values})
    if not ranks or columns < 1:
        return HeatMap(what, unit, (), (), of=of)
    start, end = min(span.begin for span in spans), max(span.end for span in spans)
    width = max(end - start, 1e-6) / columns
    sums = {rank: [0.0] * columns for rank in ranks}
    weights = {rank: [0.0] * columns for rank in ranks}
    steady = set[int]()
    for span in spans:
        first = min(columns - 1, max(0, int((span.begin - start) / width)))
        last = min(columns - 1, max(first, math.ceil((span.end - start) / width) - 1))
        if not span.is_startup:
            steady.update(range(first, last + 1))
        for column in range(first, last + 1):
            begin = start + column * width
            shared = max(1e-9, min(span.end, begin + width) - max(span.begin, begin))
            for rank, value in span.values.items():
                sums[rank][column] += value * shared
                weights[rank][column] += shared
    made = []
    for group in _groups(ranks, rows or len(ranks)):
        known = ([sums[rank][at] / weights[rank][at] for rank in group if weights[rank][at]] for at in range(columns))
        made.append(HeatRow(group[0], group[-1], tuple(worst(values) if values else None for values in known)))
    startup = tuple(at for at in range(columns) if at not in steady and any(row.values[at] is not None for row in made))
    counted = [at for at in range(columns) if at in steady] or range(columns)
    shown = sorted(cell for row in made for at in counted if (cell := row.values[at]) is not None)
    times = tuple(start + width * column for column in range(columns))
    return HeatMap(
        what, unit, times, tuple(made), shown[0], shown[-1], of, end, _scale(shown, least), startup if steady else ()
    )  # if the spans have only first steps, the scale ignores no column


def _scale(values: Sequence[float], least: float) -> tuple[float, float]:
    """Return the ends of the colour scale for sorted values."""
    left_out = int(OUTLIERS * len(values))
    low = values[left_out]
    return low, max(values[-1 - left_out], least * low)


def _groups(ranks: Sequence[int], most: int) -> list[Sequence[int]]:
    """Return the ranks in at most `most` groups of consecutive ranks, of sizes as equal as possible."""
    count = min(len(ranks), max(1, most))
    edges = [number * len(ranks) // count for number in range(count + 1)]
    return [ranks[start:end] for start, end in pairwise(edges)]

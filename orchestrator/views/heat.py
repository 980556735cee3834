"""Ranks by time as a map of cells: how long their steps took, or how busy their machines were. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

# The share of the cells at each end that the colour scale leaves out: a single slow step would fill the scale.
OUTLIERS: Final = 0.02


@dataclass(frozen=True)
class HeatRow:
    """The cells of neighbouring ranks, one a column; None where nothing is known."""

    first: int
    last: int
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class HeatMap:
    """Ranks x time. `times` are the starts of the columns by the wall clock, and `end` is where the last column ends.

    `low` and `high` are the extremes, and the colours go from `scale[0]` to `scale[1]`. Both leave out the columns
    `startup`, in which only the first steps of an attempt are known. These steps include warming up and compiling.
    """

    what: str
    unit: str
    times: tuple[float, ...]
    rows: tuple[HeatRow, ...]
    low: float | None = None
    high: float | None = None
    of: str = "rank"  # what the rows are numbered by
    end: float = 0.0
    scale: tuple[float, float] = (0.0, 0.0)
    startup: tuple[int, ...] = ()


class Span(NamedTuple):
    """Some time of the wall clock, and the mean that each rank had then."""

    begin: float
    end: float
    values: Mapping[int, float]
    is_startup: bool = False


def span_map(
    what: str, unit: str, spans: Sequence[Span], *, columns: int, rows: int | None = None,
    worst: Callable[[Iterable[float]], float] = max, of: str = "rank", least: float = 1.0,
) -> HeatMap:  # fmt: skip
    """Return the spans as so many columns: the mean of each rank, and of ranks that share a row the worst.

    The colours go up to `least` times their beginning at least, so that they do not show noise as a difference.
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
    )  # if no step but the first ones has been made yet, these are shown


def _scale(values: Sequence[float], least: float) -> tuple[float, float]:
    """Return where the colours of sorted values begin and end."""
    left_out = int(OUTLIERS * len(values))
    low = values[left_out]
    return low, max(values[-1 - left_out], least * low)


def _groups(ranks: Sequence[int], most: int) -> list[Sequence[int]]:
    """Return the ranks in neighbouring groups, as even as can be, at most so many."""
    count = min(len(ranks), max(1, most))
    edges = [number * len(ranks) // count for number in range(count + 1)]
    return [ranks[start:end] for start, end in pairwise(edges)]

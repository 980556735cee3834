"""Ranks by time as a map of cells: how long their steps took, or how busy their machines were. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple


@dataclass(frozen=True)
class HeatRow:
    """The cells of neighbouring ranks, one a column; None where nothing is known."""

    first: int
    last: int
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class HeatMap:
    """Ranks x time; `times` are where the columns begin, by the wall clock."""

    what: str
    unit: str
    times: tuple[float, ...]
    rows: tuple[HeatRow, ...]
    low: float | None = None
    high: float | None = None
    of: str = "rank"  # what the rows are numbered by


class Span(NamedTuple):
    """Some time of the wall clock, and the mean that each rank had then."""

    begin: float
    end: float
    values: Mapping[int, float]


def span_map(
    what: str, unit: str, spans: Sequence[Span], *, columns: int, rows: int | None = None,
    worst: Callable[[Iterable[float]], float] = max, of: str = "rank",
) -> HeatMap:  # fmt: skip
    """Return the spans as so many columns: the mean of each rank, and of ranks that share a row the worst."""
    ranks = sorted({rank for span in spans for rank in span.values})
    if not ranks or columns < 1:
        return HeatMap(what, unit, (), (), of=of)
    start, end = min(span.begin for span in spans), max(span.end for span in spans)
    width = max(end - start, 1e-6) / columns
    sums = {rank: [0.0] * columns for rank in ranks}
    weights = {rank: [0.0] * columns for rank in ranks}
    for span in spans:
        first = min(columns - 1, max(0, int((span.begin - start) / width)))
        last = min(columns - 1, max(first, math.ceil((span.end - start) / width) - 1))
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
    shown = [value for row in made for value in row.values if value is not None]
    times = tuple(start + width * column for column in range(columns))
    return HeatMap(what, unit, times, tuple(made), min(shown), max(shown), of)


def _groups(ranks: Sequence[int], most: int) -> list[Sequence[int]]:
    """Return the ranks in neighbouring groups, as even as can be, at most so many."""
    count = min(len(ranks), max(1, most))
    edges = [number * len(ranks) // count for number in range(count + 1)]
    return [ranks[start:end] for start, end in pairwise(edges)]

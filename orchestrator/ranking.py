"""Which run of several has the best value of a metric, by what each has left: its result, else its metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from orchestrator.errors import StoreError, UsageError
from orchestrator.logs import result_of
from orchestrator.store import RunDir, read_lines

FALLS: Final = ("loss", "error", "perplexity", "seconds")  # what ends in one of these is better when lower


@dataclass(frozen=True)
class Ranked:
    """A run and its value; rank 1 is the best, None has none."""

    run_id: str
    state: str
    values: Mapping[str, str]  # of its point
    value: float | None
    rank: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The row as JSON types."""
        return asdict(self)


def is_better_lower(metric: str) -> bool:
    """Does the metric's name say that less is more?"""
    return metric.lower().endswith(FALLS)


def metrics_of(run: RunDir) -> dict[str, float]:
    """The numbers that a run has left: those of its result, else the newest of each name among its metrics."""
    found: dict[str, float] = {}
    try:
        lines = [*read_lines(run.path / "metrics.jsonl"), result_of(run) or {}]
    except StoreError:
        return {}
    for line in lines:
        found.update({name: float(value) for name, value in line.items() if _is_number(value)})
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def ranked(rows: Iterable[Ranked], *, lower: bool) -> list[Ranked]:
    """The rows by their value, the best first; equal values share a rank, and those without one come last."""
    rows = list(rows)
    with_value = [row for row in rows if row.value is not None]
    found: list[Ranked] = []
    for position, row in enumerate(sorted(with_value, key=lambda row: row.value or 0.0, reverse=not lower), 1):
        same = found and found[-1].value == row.value
        found.append(Ranked(row.run_id, row.state, row.values, row.value, found[-1].rank if same else position))
    return [*found, *(row for row in rows if row.value is None)]


def check_metric(metric: str, found: Sequence[Mapping[str, float]]) -> None:
    """UsageError where no run has the metric; it names those that are there."""
    if not any(metric in each for each in found):
        names = sorted({name for each in found for name in each})
        known = f"they have: {', '.join(names)}" if names else "none of them has left a number yet"
        raise UsageError(f"no run of these has a metric '{metric}'", known)

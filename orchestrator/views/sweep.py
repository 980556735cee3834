"""The results of a sweep: the importance of each setting, and the best value up to each trial."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.protocol.metric import Better, JobMetric
from orchestrator.runs.files.metrics import Ranked
from orchestrator.runs.run_id import index_of
from orchestrator.views.facts import Fact, short_name, typed

LEAST_RUNS: Final = 3  # with fewer values, every correlation is perfect


@dataclass(frozen=True)
class Importance:
    """The importance of one setting for the metric, from 0 to 1.

    For a setting that is a number, `correlation` is Spearman's rank correlation, from -1 to 1. If it is negative, the
    metric falls as the setting rises. For any other setting, `correlation` is None, and the importance is the share of
    the variance of the metric's ranks that the setting explains.
    """

    name: str
    importance: float
    correlation: float | None = None


@dataclass(frozen=True)
class PointRow:
    """One point of a sweep. `settings` has the point's values, as numbers or texts, keyed by the short names of the
    settings.
    """

    run_id: str
    index: int
    label: str
    state: str
    settings: Mapping[str, Fact]
    value: float | None = None
    rank: int | None = None
    best: float | None = None  # best value of this point and the points before it


@dataclass(frozen=True)
class SweepView:
    """A sweep's points ranked by a metric, the best first."""

    title: str
    metric: str
    better: Better
    names: tuple[str, ...]  # the names of all metrics that the points have
    rows: tuple[PointRow, ...]
    importances: tuple[Importance, ...]
    note: str = ""


def sweep_view(
    title: str, metric: str, better: Better, names: tuple[str, ...], ranked: Sequence[Ranked], of_job: JobMetric | None
) -> SweepView:
    """Return the view of a sweep from its points, ranked by the metric."""
    in_order = sorted(ranked, key=lambda each: index_of(each.run_id))
    best = best_so_far((each.value for each in in_order), better)
    best_at = dict(zip((each.run_id for each in in_order), best, strict=True))
    rows = tuple(
        PointRow(
            each.run_id, index_of(each.run_id), readable(each.values) or each.run_id, str(each.state),
            {short_name(name): typed(value) for name, value in each.values.items()}, each.value, each.rank,
            best_at[each.run_id],
        )
        for each in ranked
    )  # fmt: skip
    found = importances([each.values for each in in_order], [each.value for each in in_order])
    note = ""
    if of_job is not None and metric and of_job.name not in (metric, *names):
        note = f"No point has a value of the job's metric '{of_job.name}'. The points are ranked by {metric}."
    return SweepView(title, metric, better, names, rows, found, note)


def importances(settings: Sequence[Mapping[str, str]], values: Sequence[float | None]) -> tuple[Importance, ...]:
    """Return the importance of each setting that differs between the runs, the largest first."""
    known = [(each, value) for each, value in zip(settings, values, strict=True) if value is not None]
    if len(known) < LEAST_RUNS:
        return ()
    names = dict.fromkeys(name for each, _ in known for name in each)
    found = [_importance(name, [(typed(each[name]), value) for each, value in known if name in each]) for name in names]
    return tuple(sorted(filter(None, found), key=lambda each: -each.importance))


def _importance(name: str, pairs: Sequence[tuple[Fact, float]]) -> Importance | None:
    settings, ranks = [setting for setting, _ in pairs], ranks_of([value for _, value in pairs])
    if len(pairs) < LEAST_RUNS or len(set(settings)) < 2:
        return None
    numbers = [float(each) for each in settings if not isinstance(each, str | bool)]
    if len(numbers) == len(settings):
        correlation = _correlation(ranks_of(numbers), ranks)
        return None if correlation is None else Importance(short_name(name), round(abs(correlation), 4), correlation)
    explained = _explained(settings, ranks)
    return None if explained is None else Importance(short_name(name), explained)


def ranks_of(values: Sequence[float]) -> list[float]:
    """Return the position of each value in sorted order, from 1. Equal values get the mean of their positions."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks, at = [0.0] * len(values), 0
    while at < len(order):
        end = at
        while end < len(order) and values[order[end]] == values[order[at]]:
            end += 1
        for place in order[at:end]:
            ranks[place] = (at + 1 + end) / 2
        at = end
    return ranks


def _correlation(ones: Sequence[float], others: Sequence[float]) -> float | None:
    mean, mean_of_others = sum(ones) / len(ones), sum(others) / len(others)
    shared = sum((one - mean) * (other - mean_of_others) for one, other in zip(ones, others, strict=True))
    spread = sum((one - mean) ** 2 for one in ones) * sum((other - mean_of_others) ** 2 for other in others)
    return round(shared / spread**0.5, 4) if spread else None


def _explained(settings: Sequence[Fact], ranks: Sequence[float]) -> float | None:
    """Return the share of the variance of `ranks` (the positions of the runs' metrics in sorted order) that lies
    between groups of equal settings; None if all positions are equal.
    """
    groups: dict[Fact, list[float]] = defaultdict(list)
    for setting, rank in zip(settings, ranks, strict=True):
        groups[setting].append(rank)
    mean = sum(ranks) / len(ranks)
    whole = sum((rank - mean) ** 2 for rank in ranks)
    between = sum(len(group) * (sum(group) / len(group) - mean) ** 2 for group in groups.values())
    return round(between / whole, 4) if whole else None


def best_so_far(values: Iterable[float | None], better: Better) -> list[float | None]:
    """Return for each run the best value among this run and all runs before it; None before the first value."""
    found: list[float | None] = []
    best: float | None = None
    for value in values:
        if value is not None:
            best = value if best is None else (min if better is Better.LOWER else max)(best, value)
        found.append(best)
    return found


def readable(settings: Mapping[str, str]) -> str:
    """Return a label of a point from its settings, such as `lr=1e-2 seed=0`."""
    return " ".join(f"{short_name(name)}={value}" for name, value in settings.items())

"""The results of a sweep: the importance of each setting, and the best value up to each trial."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Final

from orchestrator.protocol.metric import Better, JobMetric
from orchestrator.runs.files.metrics import Ranked
from orchestrator.runs.run_id import index_of
from orchestrator.views.facts import Fact, short_name, typed

LEAST_RUNS: Final = 3  # with fewer values, every correlation is perfect
STRONG: Final = 0.7  # a metric rises or falls with a setting from this rank correlation on
MOST_VALUES: Final = 6  # up to this number of values of a setting, the metric has to rise or fall from each to the next


class Effect(StrEnum):
    """The way in which a metric depends on a setting."""

    RISES = "rises"  # the metric rises with the setting
    FALLS = "falls"
    INSIDE = "inside"  # the best value of the setting is neither its lowest nor its highest
    UNCLEAR = "unclear"


@dataclass(frozen=True)
class Importance:
    """The importance of one setting for the metric, from 0 to 1.

    For a setting that is a number, `correlation` is Spearman's rank correlation, from -1 to 1. For any other setting,
    `correlation` is None, and the importance is the share of the variance of the metric's ranks that the setting
    explains. `best` is the value of the setting whose runs have the best mean of the metric. The effects of this
    setting and of the settings `tied` can't be told apart, because the settings always change together.
    """

    name: str
    importance: float
    correlation: float | None = None
    effect: Effect = Effect.UNCLEAR
    best: Fact | None = None
    tied: tuple[str, ...] = ()


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
    found = importances([each.values for each in in_order], [each.value for each in in_order], better)
    note = ""
    if of_job is not None and metric and of_job.name not in (metric, *names):
        note = f"No point has a value of the job's metric '{of_job.name}'. The points are ranked by {metric}."
    return SweepView(title, metric, better, names, rows, found, note)


def importances(
    settings: Sequence[Mapping[str, str]], values: Sequence[float | None], better: Better = Better.HIGHER
) -> tuple[Importance, ...]:
    """Return the importance of each setting that differs between the runs, the largest first."""
    known = [(each, value) for each, value in zip(settings, values, strict=True) if value is not None]
    if len(known) < LEAST_RUNS:
        return ()
    names = dict.fromkeys(name for each, _ in known for name in each)
    found = {
        name: _importance(name, [(typed(each[name]), value) for each, value in known if name in each], better)
        for name in names
    }
    points = [each for each, _ in known]
    of_name = {
        name: replace(
            each, tied=tuple(short_name(other) for other in found if found[other] and _tied(name, other, points))
        )
        for name, each in found.items()
        if each is not None
    }
    return tuple(sorted(of_name.values(), key=lambda each: -each.importance))


def _importance(name: str, pairs: Sequence[tuple[Fact, float]], better: Better) -> Importance | None:
    settings, ranks = [setting for setting, _ in pairs], ranks_of([value for _, value in pairs])
    if len(pairs) < LEAST_RUNS or len(set(settings)) < 2:
        return None
    means = _means(pairs)
    best = (min if better is Better.LOWER else max)(means, key=means.__getitem__)
    numbers = [float(each) for each in settings if not isinstance(each, str | bool)]
    if len(numbers) == len(settings):
        correlation = _correlation(ranks_of(numbers), ranks)
        if correlation is None:
            return None
        effect = _effect({float(each): mean for each, mean in means.items()}, float(best), correlation)
        return Importance(short_name(name), round(abs(correlation), 4), correlation, effect, best)
    explained = _explained(settings, ranks)
    return None if explained is None else Importance(short_name(name), explained, best=best)


def _means(pairs: Sequence[tuple[Fact, float]]) -> dict[Fact, float]:
    groups: dict[Fact, list[float]] = defaultdict(list)
    for setting, value in pairs:
        groups[setting].append(value)
    return {setting: sum(group) / len(group) for setting, group in groups.items()}


def _effect(means: Mapping[float, float], best: float, correlation: float) -> Effect:
    """Return the effect of a setting that is a number, from the mean of the metric at each value of the setting.

    The metric rises or falls only if the correlation is strong, and if the means are in this order. If the setting has
    many values, the means of the lowest, the middle and the highest third of its values count.
    """
    order = sorted(means)
    parts = len(order) if len(order) <= MOST_VALUES else 3
    bounds = [len(order) * part // parts for part in range(parts + 1)]
    of_parts = [sum(means[each] for each in order[start:end]) / (end - start) for start, end in pairwise(bounds)]
    if abs(correlation) >= STRONG and of_parts == sorted(of_parts, reverse=correlation < 0):
        return Effect.RISES if correlation > 0 else Effect.FALLS
    return Effect.INSIDE if best not in (order[0], order[-1]) else Effect.UNCLEAR


def _tied(name: str, other: str, points: Sequence[Mapping[str, str]]) -> bool:
    """Return whether each value of one setting has only one value of the other setting, although it has several
    runs. In a random search, each value has only one run.
    """
    if name == other:
        return False
    pairs = {(each.get(name), each.get(other)) for each in points}
    return any(
        len(pairs) == len(values) and 2 * len(values) <= len(points)
        for values in ({one for one, _ in pairs}, {two for _, two in pairs})
    )


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

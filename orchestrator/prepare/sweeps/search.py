"""Builds a Search from `--search` and the job's `search` section, and the sweep points with which its space is checked.
This module has no side effects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError
from orchestrator.prepare.sweeps.sweep import MOST_POINTS, Axis, field_of, point_at, take, taken_by
from orchestrator.protocol.metric import better_of
from orchestrator.runs.files.metrics import metric_of_job
from orchestrator.runs.searches import Dimension, Sampler, Search, Stop
from orchestrator.specs.search_space import Range, argument_text, choice_text

if TYPE_CHECKING:
    from orchestrator.runs.sweeps import Point
    from orchestrator.specs.job import Job


def search_of(
    job: Job, sampler: Sampler, trials: int, stop: Stop | None, sets: Iterable[str], fields: Collection[str]
) -> Search:
    """Return the search that the job describes. `fields` are the names of the fields of `training:`.

    Raises UsageError if the job has no search space or no metric, or if too many trials are requested.
    """
    if job.search is None:
        hint = "add `search: {space: {lr: {low: 1e-4, high: 1e-1, log: true}}}` to the job"
        raise UsageError("--search: the job has no `search` section, so there is nothing to search", hint)
    if trials > MOST_POINTS:
        raise UsageError(f"--trials {trials}: a search may have at most {MOST_POINTS} trials", "request fewer trials")
    metric = metric_of_job({"job": job.to_json()})
    if metric is None:
        hint = "add `metric: accuracy`, or `metric: {name: loss, better: lower}`, to the job"
        raise UsageError("--search: the job names no metric by which trials can be compared", hint)
    taken, space = taken_by(sets, fields), []
    for word, values in job.search.space.items():
        where = f"search.space.{word}"
        name = field_of(word, fields, where, trains=job.training is not None)
        take(name, where, taken)
        space.append(_dimension(word, name, values))
    return Search(sampler, trials, metric.name, better_of(metric.name, metric), tuple(space), stop, job.search.seed)


def _dimension(word: str, name: str, values: Range) -> Dimension:
    if values.choices is not None:
        texts = map(argument_text if word.startswith("-") else choice_text, values.choices)
        return Dimension(word, name, choices=tuple(texts))
    is_whole = isinstance(values.low, int) and isinstance(values.high, int)
    return Dimension(word, name, values.low, values.high, values.log, is_whole)


def axes_of(search: Search) -> list[Axis]:
    """Return the keys of the search space as axes of a sweep."""
    return [Axis(each.word, each.field, each.extremes()) for each in search.space]


def point_of(search: Search, index: int, values: Sequence[str]) -> Point:
    """Return the sweep point of a trial that has these values."""
    return point_at(axes_of(search), index, values)


def extremes(search: Search) -> list[Point]:
    """Return points that together contain both ends of every range and every choice."""
    count = max(len(each.extremes()) for each in search.space)
    return [
        point_of(search, index, [each.extremes()[min(index, len(each.extremes()) - 1)] for each in search.space])
        for index in range(count)
    ]

"""Renders searches: their settings, their progress and the space of values."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.cli.render.tables import table
from orchestrator.protocol import quantities
from orchestrator.protocol.metric import Better
from orchestrator.runs.searches import End, Search, Trial


def search_line(search: Search) -> str:
    """Describe a search's settings, as in `search: 40 trials by tpe, accuracy the highest; bad ones are stopped by
    asha`.
    """
    stop = f"; bad ones are stopped by {search.stop}" if search.stop is not None else ""
    return f"search: {search.trials} trials by {search.sampler}, {_wanted(search)}{stop}"


def search_page_line(search: Search, trials: Sequence[Trial]) -> str:
    """Describe a search's progress, as in `tpe, accuracy the highest: 12 of 40 trials have ended, 3 without a value;
    best 0.98 in trial 7`.
    """
    ended = [trial for trial in trials if trial.end is not None]
    without = sum(trial.end is End.FAILED for trial in ended)
    lacking = f", {without} without a value" if without else ""
    values = [(trial.value, trial.number) for trial in ended if trial.value is not None]
    value, number = (min if search.better is Better.LOWER else max)(values, default=(None, 0))
    best = f"; best {quantities.number(value)} in trial {number}" if value is not None else ""
    return f"{search.sampler}, {_wanted(search)}: {len(ended)} of {search.trials} trials have ended{lacking}{best}"


def _wanted(search: Search) -> str:
    return f"{search.metric} the {'lowest' if search.better is Better.LOWER else 'highest'}"


def space_page(search: Search) -> str:
    """Return the table of a search's space: each key with its possible values."""
    return table(["KEY", "VALUES"], [[each.word, each.words()] for each in search.space])

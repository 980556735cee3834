"""Renders sweeps and searches: a line in the table of runs, a page of points, and their ranking."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from orchestrator.cli.render.runs import NOTE_LINES, cells, note
from orchestrator.cli.render.tables import COLOURS, Style, ago, plain, table
from orchestrator.protocol.metric import Better
from orchestrator.protocol.quantities import duration, number
from orchestrator.runs.state import FINAL, RunState, RunStatus

if TYPE_CHECKING:
    from orchestrator.runs.files.metrics import Ranked
    from orchestrator.runs.searches import Search, Trial

LIVELIEST_FIRST: Final = (
    RunStatus.RUNNING, RunStatus.RESTARTING, RunStatus.STARTING, RunStatus.STOPPING, RunStatus.FINISHING,
    RunStatus.PENDING, RunStatus.SUBMITTING,
)  # fmt: skip
STOPPED_EARLY: Final = "stopped early"  # the state of a trial that the search has stopped
IN_ORDER: Final = (*map(str, FINAL), STOPPED_EARLY, *map(str, LIVELIEST_FIRST), str(RunStatus.UNREADABLE))
WORST_FIRST: Final = (RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.SUCCEEDED)
Point = tuple[RunState, Mapping[str, str]]  # the state of a point's run, and its values


def overall(states: Sequence[RunState]) -> RunStatus:
    """Return the state of a sweep: the state of its most active run or, if all runs have ended, of its worst run."""
    words = {RunStatus.SUCCEEDED if state.is_stopped_early else state.state for state in states}
    for word in LIVELIEST_FIRST:
        if word in words:
            return RunStatus.RUNNING if word == RunStatus.PENDING and words & set(FINAL) else word
    return next((word for word in WORST_FIRST if word in words), RunStatus.UNREADABLE)


def counted(states: Sequence[RunState]) -> str:
    """Return the number of runs in each state, such as `25 runs: 12 succeeded, 1 failed, 4 running, 8 pending`."""
    counts = Counter(STOPPED_EARLY if state.is_stopped_early else str(state.state) for state in states)
    named = (f"{counts[word]} {word}" for word in IN_ORDER if word in counts)
    return f"{len(states)} runs: {', '.join(named)}"


def sweep_line(sweep: str, states: Sequence[RunState], now: float) -> list[str]:
    """Return the cells of one sweep in the table of runs."""
    began = min((state.started for state in states if state.started), default=None)
    ended = [state.ended for state in states if state.ended]
    is_over = all(state.is_final for state in states) and ended
    whole = replace(
        states[0], run_id=sweep, state=overall(states), started=began, ended=max(ended) if is_over else None
    )
    return cells(whole, counted(states), now)


def sweep_page(
    sweep: str, points: Sequence[Point], now: float, style: Style = plain, width: int | None = None, search: str = ""
) -> str:
    """Return a sweep's page, with a line for each of its points and, for a search, the search's progress."""
    states = [state for state, _ in points]
    word = overall(states)
    words = list(dict.fromkeys(word for _, values in points for word in values))
    rows = [
        [
            state.run_id,
            state.state,
            *(values.get(word, "-") for word in words),
            duration((state.ended or now) - state.started) if state.started else "-",
            note(state, None, now),
        ]
        for state, values in points
    ]
    lines = [
        f"{sweep}  {style(word, COLOURS.get(word, ''))}",
        f"  profile    {states[0].profile}",
        f"  submitted  {ago(states[0].created, now)}",
        f"  points     {counted(states)}",
        *([f"  search     {search}"] if search else []),
        "",
        table(["RUN", "STATE", *words, "TOOK", "NOTE"], rows, style, colour_of=1, width=width, most=NOTE_LINES),
    ]
    return "\n".join(lines)


def best_page(metric: str, ranked: Sequence[Ranked], style: Style = plain) -> str:
    """Return the table of ranked points. Points without the metric come last."""
    words = list(dict.fromkeys(word for each in ranked for word in each.values))
    rows = [
        [
            str(each.rank) if each.rank is not None else "-",
            each.run_id,
            each.state,
            *(each.values.get(word, "-") for word in words),
            number(each.value),
        ]
        for each in ranked
    ]
    return table(["#", "RUN", "STATE", *words, metric], rows, style, colour_of=2)


def points_page(points: Sequence[Any]) -> str:
    """Return the table of the points of a sweep that was not submitted yet."""
    words = [word for word, _ in points[0].values]
    rows = [[str(point.index), *(value for _, value in point.values)] for point in points]
    return table(["POINT", *words], rows)


def space_page(search: Search) -> str:
    """Return the table of a search's space: each key with its possible values."""
    return table(["KEY", "VALUES"], [[each.word, each.words()] for each in search.space])


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
    from orchestrator.runs.searches import End

    ended = [trial for trial in trials if trial.end is not None]
    without = sum(trial.end is End.FAILED for trial in ended)
    lacking = f", {without} without a value" if without else ""
    values = [(trial.value, trial.number) for trial in ended if trial.value is not None]
    value, trial = (min if search.better is Better.LOWER else max)(values, default=(None, 0))
    best = f"; best {number(value)} in trial {trial}" if value is not None else ""
    return f"{search.sampler}, {_wanted(search)}: {len(ended)} of {search.trials} trials have ended{lacking}{best}"


def _wanted(search: Search) -> str:
    return f"{search.metric} the {'lowest' if search.better is Better.LOWER else 'highest'}"

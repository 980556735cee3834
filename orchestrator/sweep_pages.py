"""Text about sweeps: one line among the runs, a page of its points, and their ranking. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from orchestrator.ranking import Ranked
from orchestrator.records import FINAL, RunState
from orchestrator.render import COLOURS, Style, ago, duration, note, plain, table

IN_ORDER: Final = (
    "succeeded", "failed", "cancelled", "running", "restarting", "starting", "stopping", "pending", "submitting",
)  # fmt: skip
Point = tuple[RunState, Mapping[str, str]]  # and its values


def overall(states: Sequence[RunState]) -> str:
    """The state of a sweep: of its liveliest run, or, when all have ended, of the worst."""
    words = {state.state for state in states}
    for word in ("running", "restarting", "starting", "stopping", "pending", "submitting"):
        if word in words:
            return "running" if word == "pending" and words & set(FINAL) else word
    return next((word for word in ("failed", "cancelled", "succeeded") if word in words), "unreadable")


def counted(states: Sequence[RunState]) -> str:
    """`25 runs: 12 succeeded, 1 failed, 4 running, 8 pending`."""
    counts = Counter(state.state for state in states)
    named = [*(word for word in IN_ORDER if word in counts), *sorted(set(counts) - set(IN_ORDER))]
    return f"{len(states)} runs: {', '.join(f'{counts[word]} {word}' for word in named)}"


def sweep_line(sweep: str, states: Sequence[RunState], now: float) -> list[str]:
    """The cells of one sweep in the table of runs."""
    first = states[0]
    ranks = str(first.world_size) if first.world_size else "?"
    return [sweep, overall(states), first.profile, ranks, ago(first.created, now), _took(states, now), counted(states)]


def _took(states: Sequence[RunState], now: float) -> str:
    began = [state.started for state in states if state.started]
    ended = [state.ended for state in states if state.ended]
    if not began:
        return "-"
    is_over = all(state.is_final for state in states) and ended
    return duration((max(ended) if is_over else now) - min(began))


def sweep_page(sweep: str, points: Sequence[Point], now: float, style: Style = plain) -> str:
    """A sweep with a line for each of its points."""
    states = [state for state, _ in points]
    word = overall(states)
    words = list(dict.fromkeys(word for _, values in points for word in values))
    rows = [
        [
            state.run_id,
            state.state,
            *(values.get(word, "-") for word in words),
            duration((state.ended or now) - state.started) if state.started else "-",
            note(state, None),
        ]
        for state, values in points
    ]
    lines = [
        f"{sweep}  {style(word, COLOURS.get(word, ''))}",
        f"  profile    {states[0].profile}",
        f"  submitted  {ago(states[0].created, now)}",
        f"  points     {counted(states)}",
        "",
        table(["RUN", "STATE", *words, "TOOK", "NOTE"], rows, style, colour_of=1),
    ]
    return "\n".join(lines)


def best_page(metric: str, ranked: Sequence[Ranked], style: Style = plain) -> str:
    """The points by rank; those without the metric last."""
    words = list(dict.fromkeys(word for each in ranked for word in each.values))
    rows = [
        [
            str(each.rank) if each.rank is not None else "-",
            each.run_id,
            each.state,
            *(each.values.get(word, "-") for word in words),
            f"{each.value:.6g}" if each.value is not None else "-",
        ]
        for each in ranked
    ]
    return table(["RANK", "RUN", "STATE", *words, metric], rows, style, colour_of=2)


def points_page(points: Sequence[Any]) -> str:
    """The points of a sweep that is not submitted."""
    words = [word for word, _ in points[0].values]
    rows = [[str(point.index), *(value for _, value in point.values)] for point in points]
    return table(["POINT", *words], rows)

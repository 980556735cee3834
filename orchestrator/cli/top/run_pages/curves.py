"""Page 2: curves of two metrics of a run, by default the loss and the samples per second."""

from __future__ import annotations

from typing import ClassVar

import click
from rich.text import Text

from orchestrator.cli.render import plot
from orchestrator.cli.top.page import Again, Look, Press, Step
from orchestrator.cli.top.run_pages.base import OfRun
from orchestrator.runs.files.metrics import default_metric
from orchestrator.runs.files.written_metrics import HOW_TO_WRITE
from orchestrator.runs.store import RunDir
from orchestrator.views.curves import Axis, Curves
from orchestrator.views.reader import Reader
from orchestrator.views.run import RunView

FIRST = ("loss", "rate")  # the metrics that are shown at first, if the run has them
SMOOTHINGS = (0.0, 0.6, 0.9)
MOST_POINTS = 400  # braille has two points per column, and a wide screen 200 columns


class CurvesPage(OfRun[tuple[Curves, ...]]):
    """The page with two curves, one above the other."""

    name, number = "curves", 2
    keys: ClassVar = (("m", "upper metric"), ("n", "lower"), ("x", "step or time"), ("s", "smoothing"))

    def __init__(self, reader: Reader, run: RunDir) -> None:
        super().__init__(reader, run)
        self.metrics, self.axis, self.smoothing = list(FIRST), Axis.STEP, SMOOTHINGS[0]

    def look_at(self, view: RunView) -> tuple[Curves, ...]:
        """Read the curves. If the run has neither of the two default metrics, choose another metric."""
        names = self.reader.curves([self.run], "").names
        if names and set(self.metrics) == set(FIRST) and set(names).isdisjoint(FIRST):
            self.metrics[0] = default_metric(names)
        return tuple(
            self.reader.curves([self.run], name, smoothing=self.smoothing, most=MOST_POINTS) for name in self.metrics
        )

    def lines(self, body: tuple[Curves, ...], look: Look) -> list[Text]:
        """Return the plots of the chosen metrics that the run has, or a hint if it has none of them."""
        there = [curves for curves in body if curves.curves]
        if not there:
            names = ", ".join(body[0].names) if body else ""
            hint = (
                f"available metrics: {names}; the keys m and n choose one"
                if names
                else f"the run has written no metric yet; {HOW_TO_WRITE}"
            )
            return [Text(f"this run has no {' and no '.join(self.metrics)}: {hint}" if names else f"no curves: {hint}")]
        found: list[Text] = []
        height = max(9, look.height // len(there) + 1)
        for curves in there:
            name = f"smoothed {self.smoothing:g}" if self.smoothing else "as written"
            shown = [plot.Curve(name, each.points(self.axis)) for each in curves.curves]
            page = plot.plot_page(
                curves.metric,
                shown,
                (look.width, height),
                braille=look.marks.braille,
                style=_style,
                x="step" if self.axis is Axis.STEP else "seconds",
            )
            found += [Text.from_ansi(line) for line in page.split("\n")]
        return found

    def own_presses(self) -> dict[str, Press]:
        """Return the keys that choose the metrics, the axis and the smoothing, with their actions."""
        return {"m": lambda: self._next(0), "n": lambda: self._next(1), "x": self._turn, "s": self._smooth}

    def _next(self, place: int) -> Step:
        names = self.data.body[0].names if self.data is not None else ()
        if names:
            now = self.metrics[place]
            self.metrics[place] = names[(names.index(now) + 1) % len(names)] if now in names else names[0]
        return Again()

    def _turn(self) -> Step:
        self.axis = Axis.TIME if self.axis is Axis.STEP else Axis.STEP
        return Again()

    def _smooth(self) -> Step:
        self.smoothing = SMOOTHINGS[(SMOOTHINGS.index(self.smoothing) + 1) % len(SMOOTHINGS)]
        return Again()


def _style(text: str, colour: str) -> str:
    return click.style(text, fg=colour) if colour else text

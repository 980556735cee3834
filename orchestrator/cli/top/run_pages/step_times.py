"""Page 3: a heat map of the step times of ranks."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text

from orchestrator.cli.render.escapes import one_line
from orchestrator.cli.render.tables import fold
from orchestrator.cli.top.marks import heat, heat_map, margin_of, usual_of
from orchestrator.cli.top.page import Look
from orchestrator.cli.top.run_pages.base import OfRun
from orchestrator.protocol.quantities import duration
from orchestrator.views.heat import HeatMap
from orchestrator.views.pace import Pace
from orchestrator.views.run import RunView

MOST_COLUMNS, MOST_ROWS = 400, 200


class StepTimesPage(OfRun[tuple[HeatMap, Pace | None]]):
    """The page with a sentence about the slowest rank, and a heat map of step times. A row of the map is one rank, or
    several consecutive ranks.
    """

    name, number = "heat", 3
    keys: ClassVar = (("1-7", "pages"), ("w", "why"), ("c", "cancel"))

    _size = (60, 16)  # columns and rows of the heat map at the last drawing

    def look_at(self, view: RunView) -> tuple[HeatMap, Pace | None]:
        """Read the step times and the slowest rank from the samples."""
        columns, rows = self._size
        return self.reader.step_time_map(self.run, columns=columns, rows=rows), self.reader.pace(self.run)

    def lines(self, body: tuple[HeatMap, Pace | None], look: Look) -> list[Text]:
        """Return lines with the sentence and the heat map, whose newest values are on the right."""
        map_, pace = body
        said = [Text(line, "bold") for line in fold(one_line(pace.sentence), look.width)] if pace is not None else []
        self._size = (max(8, look.width - margin_of(map_) - 1), max(1, look.height - 3 - len(said)))
        if not map_.rows:
            return [Text("no rank has reported two steps: heartbeats do, see orchestrator.training")]
        usual = usual_of(value for row in map_.rows for value in row.values)
        drawn = heat_map(map_, look.height - 2 - len(said), lambda value: heat(value, usual, look.marks), look.now)
        line = f"a step takes {duration(usual)} usually, from {duration(map_.low)} to {duration(map_.high)}"
        return [*said, Text(line), *drawn]

"""Page 3: a heat map of the step times of ranks."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text

from orchestrator.cli.top.marks import heat, usual_of
from orchestrator.cli.top.page import Look
from orchestrator.cli.top.run_pages.base import OfRun
from orchestrator.protocol.quantities import duration
from orchestrator.views.heat import HeatMap
from orchestrator.views.run import RunView

MOST_COLUMNS, MOST_ROWS = 400, 200


class StepTimesPage(OfRun[HeatMap]):
    """Shows a heat map in which each row is a rank or several neighbouring ranks."""

    name, number = "heat", 3
    keys: ClassVar = (("1-7", "pages"), ("w", "why"), ("c", "cancel"))

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._size = (60, 16)  # columns and rows of the last drawing

    def look_at(self, view: RunView) -> HeatMap:
        """Read the step times from the samples."""
        columns, rows = self._size
        return self.reader.step_time_map(self.run, columns=columns, rows=rows)

    def lines(self, body: HeatMap, look: Look) -> list[Text]:
        """Return the heat map, with the newest values on the right."""
        margin = max((len(f"{row.first}-{row.last}") for row in body.rows), default=3) + 1
        self._size = (max(8, look.width - margin - 1), max(1, look.height - 3))
        if not body.rows:
            return [Text("no rank has told of two steps: heartbeats do, see orchestrator.training")]
        usual = usual_of(value for row in body.rows for value in row.values)
        low, high = body.low or 0.0, body.high or 0.0
        made = [Text(f"a step takes {duration(usual)} usually, from {duration(low)} to {duration(high)}")]
        for row in body.rows[: look.height - 2]:
            name = str(row.first) if row.first == row.last else f"{row.first}-{row.last}"
            line = Text(name.ljust(margin))
            for value in row.values:
                line.append_text(heat(value, usual, look.marks))
            made.append(line)
        return [*made, Text(f"{'':{margin}}{duration(look.now - body.times[0])} ago ... now")]

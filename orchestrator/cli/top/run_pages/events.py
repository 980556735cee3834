"""Page 5: the events of a run, in order of time."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text

from orchestrator.cli.render.events import event_lines
from orchestrator.cli.top.page import Again, Look, Press, Scroll, Step
from orchestrator.cli.top.run_pages.base import OfRun
from orchestrator.protocol.events import Event
from orchestrator.runs.store import RunDir
from orchestrator.views.reader import Reader
from orchestrator.views.run import RunView


class EventsPage(OfRun[list[Event]]):
    """The page with a line for each event. At first, the newest events are visible."""

    name, number = "events", 5
    keys: ClassVar = (("up down", "move"), ("left right", "along a line"), ("1-7", "pages"))

    def __init__(self, reader: Reader, run: RunDir) -> None:
        super().__init__(reader, run)
        self.scroll, self.column = Scroll(follows=True), 0

    def look_at(self, view: RunView) -> list[Event]:
        return sorted(self.reader.events(self.run), key=lambda event: event.time)

    def lines(self, body: list[Event], look: Look) -> list[Text]:
        if not body:
            return [Text("nothing has been recorded yet")]
        window = self.scroll.window(len(body), look.height)
        return [Text(line[self.column :]) for line in event_lines(body[number].to_json() for number in window)]

    def own_presses(self) -> dict[str, Press]:
        return {**self.scroll.presses(), "left": lambda: self._shift(-8), "right": lambda: self._shift(8)}

    def _shift(self, by: int) -> Step:
        self.column = max(0, self.column + by)
        return Again()

"""Page 6: why a run ended."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text

from orchestrator.cli.render import escapes
from orchestrator.cli.render.runs import verdict_page
from orchestrator.cli.render.tables import fold
from orchestrator.cli.top.page import Look, Press, Scroll
from orchestrator.cli.top.run_pages.base import OfRun
from orchestrator.runs.state import RunState
from orchestrator.runs.store import RunDir
from orchestrator.views.reader import Reader
from orchestrator.views.run import RunView


class Why(OfRun[RunState]):
    """The page on why a run ended: the reason, the traceback, the last lines and the attempts."""

    name, number = "why", 6
    keys: ClassVar = (("up down", "move"), ("1-7", "pages"), ("f", "follow"))

    def __init__(self, reader: Reader, run: RunDir) -> None:
        super().__init__(reader, run)
        self.scroll = Scroll()

    def look_at(self, view: RunView) -> RunState:
        return self.reader.state(self.run)

    def lines(self, body: RunState, look: Look) -> list[Text]:
        page = (escapes.one_line(line) for line in verdict_page(body, now=look.now, width=look.width).split("\n"))
        text = [part for line in page for part in fold(line, look.width)]
        return [Text(text[number]) for number in self.scroll.window(len(text), look.height)]

    def own_presses(self) -> dict[str, Press]:
        return self.scroll.presses()

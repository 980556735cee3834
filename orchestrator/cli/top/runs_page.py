"""The first page of `orch top`, which lists all runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from rich.text import Text

from orchestrator.cli.render.runs import HEADER, SPARE, cells
from orchestrator.cli.render.tables import COLOURS
from orchestrator.cli.top.actions import browse, cancel_of
from orchestrator.cli.top.marks import cells as fitted
from orchestrator.cli.top.marks import paint
from orchestrator.cli.top.page import Again, Ask, Cursor, Look, Open, Page, Press, Say, Step, pointed
from orchestrator.cli.top.run_pages import LogPage, Overview, Why
from orchestrator.runs.store import RunDir
from orchestrator.views.reader import Reader
from orchestrator.views.runs import RunRow, RunsView


class RunsPage(Page[RunsView]):
    """The page that lists all runs, the newest first, with a cursor."""

    keys: ClassVar = (("enter", "look"), ("/", "filter"), ("f", "follow"), ("w", "why"), ("c", "cancel"))

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self.reader, self.cursor, self.words = reader, Cursor(), ""
        self._chosen = ""  # the run under the cursor, which stays there when newer runs appear

    @property
    def wants_more(self) -> bool:
        """Return True if some runs have not been read yet."""
        return self.data is not None and self.data.unread > 0

    def title(self, look: Look) -> Text:
        """Return the first line of the page: how many runs there are, their states, and the filter."""
        if self.data is None:
            return Text("orch top: reading the runs")
        states = ", ".join(f"{count} {state}" for state, count in sorted(self.data.states.items()))
        said = [f"{self.data.total} run{'s' * (self.data.total != 1)}", states]
        if self.words:
            said.append(f"{len(self.data.rows)} with '{self.words}'")
        if self.data.unread:
            said.append(f"{self.data.unread} are still being read")
        return Text(f"orch top  {'; '.join(filter(None, said))}")

    def read(self) -> RunsView:
        return self.reader.runs(self.words)

    def draw(self, look: Look) -> list[Text]:
        if self.data is None:
            return []
        rows = self.data.rows
        if not rows:
            none = "no runs yet; start one: orch submit JOB --profile PROFILE"
            return [Text(f"no run has '{self.words}'; an empty filter shows all" if self.words else none)]
        self._keep_chosen(rows)
        window = self.cursor.window(len(rows), look.height - 1)
        shown = [rows[number] for number in window]
        header, *lines = fitted(HEADER, [cells(row, row.note, look.now) for row in shown], look.width - 2, SPARE)
        for line, row in zip(lines, shown, strict=True):
            paint(line, row.state, COLOURS.get(row.state, ""))
        return pointed([header, *lines], self.cursor.at - window.start + 1)

    def _keep_chosen(self, rows: tuple[RunRow, ...]) -> None:
        found = next((number for number, row in enumerate(rows) if row.run_id == self._chosen), None)
        if found is not None:
            self.cursor.at = found
        self.cursor.window(len(rows), self.cursor.rows)
        self._chosen = rows[self.cursor.at].run_id

    def presses(self) -> dict[str, Press]:
        moves = {key: lambda move=move: self._moved(move) for key, move in self.cursor.presses().items()}
        return {
            **moves, "enter": lambda: self._open(Overview), "right": lambda: self._open(Overview),
            "f": lambda: self._open(LogPage), "w": lambda: self._open(Why),
            "o": lambda: self._with_run(browse), "c": lambda: self._with_run(cancel_of),
            "/": lambda: Ask("filter: ", self._filter, self.words),
        }  # fmt: skip

    def _moved(self, move: Press) -> Step:
        step = move()
        self._chosen = ""
        return step

    def _run(self) -> RunDir | None:
        rows = self.data.rows if self.data is not None else ()
        return self.reader.folder_of(rows[self.cursor.at].run_id) if self.cursor.at < len(rows) else None

    def _open(self, page: type[Overview | LogPage | Why]) -> Step:
        run = self._run()
        return Open(page(self.reader, run)) if run is not None else Say("there is no run here")

    def _filter(self, words: str) -> None:
        self.words, self._chosen, self.cursor.at = words, "", 0

    def _with_run(self, act: Callable[[Path, RunDir], Step]) -> Step:
        run = self._run()
        return act(self.reader.root, run) if run is not None else Again()

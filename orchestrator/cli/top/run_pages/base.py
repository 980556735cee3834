"""The base class of the pages about a run, with their title and their common keys."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from rich.text import Text

from orchestrator.cli.render.tables import COLOURS
from orchestrator.cli.top.actions import browse, cancel_of
from orchestrator.cli.top.page import Look, Open, Page, Press
from orchestrator.runs.store import RunDir
from orchestrator.views.reader import Reader
from orchestrator.views.run import RunView

Body = TypeVar("Body")


@dataclass(frozen=True)
class Seen(Generic[Body]):
    """The data of a page about a run: the run's view, and the data that only this page shows."""

    view: RunView
    body: Body


class OfRun(Page[Seen[Body]], Generic[Body]):
    """The base class of a page about one run."""

    name: ClassVar[str]
    number: ClassVar[int]
    pages: ClassVar[dict[int, type[OfRun[object]]]] = {}

    def __init_subclass__(cls) -> None:
        """Register the subclass under its page number."""
        super().__init_subclass__()
        OfRun.pages[cls.number] = cls  # type: ignore[assignment]

    def __init__(self, reader: Reader, run: RunDir) -> None:
        super().__init__()
        self.reader, self.run = reader, run

    @abstractmethod
    def look_at(self, view: RunView) -> Body:
        """Read and return the data that only this page shows."""

    @abstractmethod
    def lines(self, body: Body, look: Look) -> list[Text]:
        """Return the lines of the page below the title. `body` is the result of `look_at`."""

    def own_presses(self) -> dict[str, Press]:
        """Return the keys that only this page has, with their actions."""
        return {}

    def read(self) -> Seen[Body]:
        """Read the run's view and the page's own data."""
        view = self.reader.run(self.run)
        return Seen(view, self.look_at(view))

    def title(self, look: Look) -> Text:
        """Return the first line of the page: the run, its state, and the list of pages."""
        line = Text(self.run.run_id, "bold")
        if self.data is not None:
            state = self.data.view.row.state
            line.append("  ").append(state, COLOURS.get(state, ""))
        names = [f"{number}:{page.name}" for number, page in sorted(self.pages.items())]
        if line.cell_len + len(" ".join(names)) + 4 > look.width:
            names = [name if int(name[0]) == self.number else name[0] for name in names]
        shown = " ".join(f"[{name}]" if int(name[0]) == self.number else name for name in names)
        return line.append(f"  {shown}")

    def draw(self, look: Look) -> list[Text]:
        """Return the lines of the page below the title."""
        return [Text("reading ...")] if self.data is None else self.lines(self.data.body, look)

    def presses(self) -> dict[str, Press]:
        """Return the actions of the keys that all pages about a run have, and of this page's own keys."""
        numbers = sorted(self.pages)
        after = numbers[(numbers.index(self.number) + 1) % len(numbers)]
        return {
            **{str(number): self._opens(page) for number, page in self.pages.items()},
            "tab": self._opens(self.pages[after]),
            "w": self._opens(next(page for page in self.pages.values() if page.name == "why")),
            "f": self._opens(next(page for page in self.pages.values() if page.name == "log")),
            "o": lambda: browse(self.reader.root, self.run),
            "c": lambda: cancel_of(self.reader.root, self.run),
            **self.own_presses(),
        }

    def _opens(self, page: type[OfRun[object]]) -> Press:
        return lambda: Open(page(self.reader, self.run), instead=True)

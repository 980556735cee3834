"""The base class of pages, the reactions to a key, and the cursor of a list."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from rich.text import Text

from orchestrator.cli.top.marks import Marks

Data = TypeVar("Data")


@dataclass(frozen=True)
class Look:
    """The size of a page, the characters to draw it with (Unicode or ASCII), and the present time."""

    width: int
    height: int
    marks: Marks
    now: float


@dataclass(frozen=True)
class Open:
    """A step that opens another page, on top of this one or instead of it."""

    page: Page[Any]
    instead: bool = False


@dataclass(frozen=True)
class Ask:
    """A step that asks for a line of text, and passes it to `done`."""

    question: str
    done: Callable[[str], None]
    text: str = ""


@dataclass(frozen=True)
class Confirm:
    """A step that asks for confirmation. `y` calls `act` in a thread and shows its result; any other key cancels the
    step.
    """

    question: str
    act: Callable[[], str]


@dataclass(frozen=True)
class Act:
    """A step that calls `act` in a thread, and shows its result."""

    act: Callable[[], str]


@dataclass(frozen=True)
class Say:
    """A step that shows a message until the next key."""

    words: str


@dataclass(frozen=True)
class Again:
    """A step that reads the page's data again at once."""


Step = Open | Ask | Confirm | Act | Say | Again | None
Press = Callable[[], Step]


class Page(ABC, Generic[Data]):
    """The base class of pages. A page keeps the data of its last read."""

    keys: ClassVar[tuple[tuple[str, str], ...]] = ()  # (key, description) for the last line, the most important first

    def __init__(self) -> None:
        self.data: Data | None = None

    @property
    def wants_more(self) -> bool:
        """Return True if the page's data must be read again at once."""
        return False

    @abstractmethod
    def title(self, look: Look) -> Text:
        """Return the first line."""

    @abstractmethod
    def read(self) -> Data:
        """Return the page's data. This is called in a thread."""

    @abstractmethod
    def draw(self, look: Look) -> list[Text]:
        """Return the lines below the title."""

    @abstractmethod
    def presses(self) -> dict[str, Press]:
        """Return the action of each key on this page."""


class Cursor:
    """A position in a list that grows and shrinks, and the window around it."""

    def __init__(self) -> None:
        self.at = 0
        self.first = 0
        self.rows = 1  # height of the window when it was last drawn

    def window(self, count: int, rows: int) -> range:
        """Return the indices of the visible rows, which include the cursor."""
        self.rows = max(1, rows)
        self.at = min(max(0, self.at), max(0, count - 1))
        self.first = min(max(self.first, self.at - self.rows + 1, 0), self.at, max(0, count - self.rows))
        return range(self.first, min(count, self.first + self.rows))

    def move(self, by: int) -> Again:
        """Move the cursor by this number of rows. `window` keeps it in the list."""
        self.at = max(0, self.at + by)
        return Again()

    def presses(self) -> dict[str, Press]:
        """Return the keys that move the cursor."""
        far = 1 << 40
        return {
            "up": lambda: self.move(-1), "k": lambda: self.move(-1),
            "down": lambda: self.move(1), "j": lambda: self.move(1),
            "pageup": lambda: self.move(-self.rows), "pagedown": lambda: self.move(self.rows),
            "home": lambda: self.move(-far), "g": lambda: self.move(-far),
            "end": lambda: self.move(far), "G": lambda: self.move(far),
        }  # fmt: skip


class Scroll(Cursor):
    """Scrolls text without a cursor. With `follows`, a window at the end stays at the end."""

    def __init__(self, *, follows: bool = False) -> None:
        super().__init__()
        self._may_follow = self._follows = follows

    def window(self, count: int, rows: int) -> range:
        """Return the indices of the visible lines."""
        self.rows = max(1, rows)
        last = max(0, count - self.rows)
        self.at = last if self._follows else min(self.at, last)
        self._follows = self._may_follow and self.at == last
        return range(self.at, min(count, self.at + self.rows))

    def move(self, by: int) -> Again:
        """Scroll by this number of lines."""
        self._follows = False
        return super().move(by)


def pointed(lines: Sequence[Text], chosen: int | None) -> list[Text]:
    """Return the lines with a mark in front of the chosen line. The mark is visible without colours too."""
    made = []
    for number, line in enumerate(lines):
        shown = Text("> " if number == chosen else "  ") + line
        if number == chosen:
            shown.stylize("bold")
        made.append(shown)
    return made

"""The base class of pages, the reactions to a key (called steps), and the cursor of a list."""

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
    """A reaction to a key: opens another page on top of the present page or, with `instead`, in place of it."""

    page: Page[Any]
    instead: bool = False


@dataclass(frozen=True)
class Ask:
    """A reaction to a key: asks the user for a line of text, and passes the text to `done`."""

    question: str
    done: Callable[[str], None]
    text: str = ""


@dataclass(frozen=True)
class Confirm:
    """A reaction to a key: asks for confirmation. The key `y` calls `act` in a thread and shows the result. Any other
    key calls nothing.
    """

    question: str
    act: Callable[[], str]


@dataclass(frozen=True)
class Act:
    """A reaction to a key: calls `act` in a thread, and shows the result."""

    act: Callable[[], str]


@dataclass(frozen=True)
class Say:
    """A reaction to a key: shows a message until the next key."""

    words: str


@dataclass(frozen=True)
class Again:
    """A reaction to a key: reads the page's data again at once."""


Step = Open | Ask | Confirm | Act | Say | Again | None
Press = Callable[[], Step]


class Page(ABC, Generic[Data]):
    """The base class of the pages of `orch top`. A page stores the data of its last read."""

    # (key, description) for the list of keys in the last line, the most important first
    keys: ClassVar[tuple[tuple[str, str], ...]] = ()

    def __init__(self) -> None:
        self.data: Data | None = None

    @property
    def wants_more(self) -> bool:
        """Return True if the page's data must be read again at once."""
        return False

    @abstractmethod
    def title(self, look: Look) -> Text:
        """Return the first line of the page."""

    @abstractmethod
    def read(self) -> Data:
        """Read and return the page's data. The application calls this in a thread."""

    @abstractmethod
    def draw(self, look: Look) -> list[Text]:
        """Return the lines of the page below the title."""

    @abstractmethod
    def presses(self) -> dict[str, Press]:
        """Return the action of each key on this page."""


class Cursor:
    """A position in a list that may grow and shrink, and the visible part of the list."""

    def __init__(self) -> None:
        self.at = 0
        self.first = 0
        self.rows = 1  # number of rows that were visible at the last drawing

    def window(self, count: int, rows: int) -> range:
        """Return the indices of the visible rows of a list with `count` rows. The cursor's row is always visible."""
        self.rows = max(1, rows)
        self.at = min(max(0, self.at), max(0, count - 1))
        self.first = min(max(self.first, self.at - self.rows + 1, 0), self.at, max(0, count - self.rows))
        return range(self.first, min(count, self.first + self.rows))

    def move(self, by: int) -> Again:
        """Move the cursor by this number of rows. The next call of `window` limits the cursor to the list."""
        self.at = max(0, self.at + by)
        return Again()

    def presses(self) -> dict[str, Press]:
        """Return the keys that move the cursor, with their actions."""
        far = 1 << 40
        return {
            "up": lambda: self.move(-1), "k": lambda: self.move(-1),
            "down": lambda: self.move(1), "j": lambda: self.move(1),
            "pageup": lambda: self.move(-self.rows), "pagedown": lambda: self.move(self.rows),
            "home": lambda: self.move(-far), "g": lambda: self.move(-far),
            "end": lambda: self.move(far), "G": lambda: self.move(far),
        }  # fmt: skip


class Scroll(Cursor):
    """Scrolls text that has no cursor. With `follows`, the view moves to new lines as long as the text's end is
    visible.
    """

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
    """Return the lines with `> ` in front of the chosen line, so that it can be recognised without colours too."""
    made = []
    for number, line in enumerate(lines):
        shown = Text("> " if number == chosen else "  ") + line
        if number == chosen:
            shown.stylize("bold")
        made.append(shown)
    return made

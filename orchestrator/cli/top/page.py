"""What all pages share: their size, what a key may lead to, and lists with a cursor."""

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
    """What a page is drawn on, and when."""

    width: int
    height: int
    marks: Marks
    now: float


@dataclass(frozen=True)
class Open:
    """Another page follows; in place of this one, or above it."""

    page: Page[Any]
    instead: bool = False


@dataclass(frozen=True)
class Ask:
    """A line is typed, which `done` takes."""

    question: str
    done: Callable[[str], None]
    text: str = ""


@dataclass(frozen=True)
class Confirm:
    """`y` lets it be done, beside the screen; what that returns is said. Any other key leaves it."""

    question: str
    act: Callable[[], str]


@dataclass(frozen=True)
class Act:
    """Something is done beside the screen; what it returns is said."""

    act: Callable[[], str]


@dataclass(frozen=True)
class Say:
    """Some words are shown until the next key."""

    words: str


@dataclass(frozen=True)
class Again:
    """The page is to be read again at once."""


Step = Open | Ask | Confirm | Act | Say | Again | None
Press = Callable[[], Step]


class Page(ABC, Generic[Data]):
    """One page: what it has read last, and what is shown of that."""

    keys: ClassVar[tuple[tuple[str, str], ...]] = ()  # (key, words) for the last line, the most needed first

    def __init__(self) -> None:
        self.data: Data | None = None

    @property
    def wants_more(self) -> bool:
        """Tell whether another look is to follow at once."""
        return False

    @abstractmethod
    def title(self, look: Look) -> Text:
        """Return the first line."""

    @abstractmethod
    def read(self) -> Data:
        """Return what the page shows; called beside the screen, in a thread."""

    @abstractmethod
    def draw(self, look: Look) -> list[Text]:
        """Return the lines below the title."""

    @abstractmethod
    def presses(self) -> dict[str, Press]:
        """Return what each key does here."""


class Cursor:
    """A place in a list that grows and shrinks, and the window around it."""

    def __init__(self) -> None:
        self.at = 0
        self.first = 0
        self.rows = 1  # that the window had last

    def window(self, count: int, rows: int) -> range:
        """Return which of so many are shown on so many rows; the cursor is among them."""
        self.rows = max(1, rows)
        self.at = min(max(0, self.at), max(0, count - 1))
        self.first = min(max(self.first, self.at - self.rows + 1, 0), self.at, max(0, count - self.rows))
        return range(self.first, min(count, self.first + self.rows))

    def move(self, by: int) -> Again:
        """Go so many further; `window` keeps it in the list."""
        self.at = max(0, self.at + by)
        return Again()

    def presses(self) -> dict[str, Press]:
        """Return the keys that move it."""
        far = 1 << 40
        return {
            "up": lambda: self.move(-1), "k": lambda: self.move(-1),
            "down": lambda: self.move(1), "j": lambda: self.move(1),
            "pageup": lambda: self.move(-self.rows), "pagedown": lambda: self.move(self.rows),
            "home": lambda: self.move(-far), "g": lambda: self.move(-far),
            "end": lambda: self.move(far), "G": lambda: self.move(far),
        }  # fmt: skip


class Scroll(Cursor):
    """The same for text without a cursor; one that `follows` stays at the end as long as it is there."""

    def __init__(self, *, follows: bool = False) -> None:
        super().__init__()
        self._may_follow = self._follows = follows

    def window(self, count: int, rows: int) -> range:
        """Return which of so many lines are shown."""
        self.rows = max(1, rows)
        last = max(0, count - self.rows)
        self.at = last if self._follows else min(self.at, last)
        self._follows = self._may_follow and self.at == last
        return range(self.at, min(count, self.at + self.rows))

    def move(self, by: int) -> Again:
        """Go so many lines further."""
        self._follows = False
        return super().move(by)


def pointed(lines: Sequence[Text], chosen: int | None) -> list[Text]:
    """Return lines with a mark before the chosen one, which is seen without colours too."""
    made = []
    for number, line in enumerate(lines):
        shown = Text("> " if number == chosen else "  ") + line
        if number == chosen:
            shown.stylize("bold")
        made.append(shown)
    return made

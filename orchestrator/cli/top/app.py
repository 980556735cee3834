"""The application of `orch top`. It shows pages, and reads their data in a thread every second and after each key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, ClassVar

from rich.segment import Segment
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Key, Resize
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from orchestrator.cli.render.escapes import one_line
from orchestrator.cli.render.tables import cut, fold
from orchestrator.cli.top.help_page import HelpPage
from orchestrator.cli.top.marks import Marks
from orchestrator.cli.top.page import Act, Again, Ask, Confirm, Look, Open, Page, Say, Step
from orchestrator.errors import OrchError, is_printable

SECONDS = 1.0  # seconds between two reads; files are polled, because a network file system sends no events
MOST_LINES = 5  # the most lines of a message


class Canvas(Widget, can_focus=True):
    """A textual widget that covers the whole screen and is drawn line by line."""

    lines: list[Text]

    def __init__(self) -> None:
        super().__init__()
        self.lines = []

    def show(self, lines: list[Text]) -> None:
        """Show these lines on the screen."""
        self.lines = lines
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return line `y` as an object that the library Textual can draw."""
        if y >= len(self.lines):
            return Strip.blank(self.size.width)
        segments = [Segment(each.text, each.style) for each in self.lines[y].render(self.app.console)]
        return Strip(segments).adjust_cell_length(self.size.width)


class Top(App[None]):
    """The application `orch top`. It has a stack of open pages, and shows the topmost page."""

    ENABLE_COMMAND_PALETTE = False
    CSS = "Screen { layout: vertical; } Canvas { width: 100%; height: 100%; }"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c,ctrl+q", "quit", show=False, priority=True)]

    def __init__(self, first: list[Page[Any]], marks: Marks, clock: Callable[[], float] = time.time) -> None:
        super().__init__(ansi_color=True)
        self.pages, self._marks, self._clock = first, marks, clock
        self._asked: Ask | Confirm | None = None
        self._typed = self._said = ""
        self._is_reading = self._is_due = False

    def compose(self) -> ComposeResult:
        """Create the canvas. textual calls this at its start."""
        yield Canvas()

    def on_mount(self) -> None:
        """Read the page's data at once, and then at regular intervals. textual calls this when the canvas exists."""
        self.query_one(Canvas).focus()
        self.look()
        self.set_interval(SECONDS, self.look)

    def on_resize(self, event: Resize) -> None:
        """Redraw the page in the new size at once, then read data for this size."""
        self.draw_page(event.size)
        self.look()

    @property
    def page(self) -> Page[Any]:
        """Return the visible page."""
        return self.pages[-1]

    # -- reading

    def look(self) -> None:
        """Read the page's data in a thread. If a read is in progress, read again when it has ended."""
        self._is_due = True
        if not self._is_reading:
            self._is_reading = True
            self.run_worker(self._read(), exit_on_error=True)

    async def _read(self) -> None:
        try:
            while self._is_due:
                self._is_due, page = False, self.page
                try:
                    data = await asyncio.to_thread(page.read)
                except (OrchError, OSError) as error:
                    self._said = _in_words(error)
                else:
                    page.data = data
                    self._is_due = self._is_due or page.wants_more
                self.draw_page()
        finally:
            self._is_reading = False

    def draw_page(self, size: Size | None = None) -> None:
        """Draw the visible page. Below it are a question, a message or a list of keys."""
        size = size or self.size
        look = Look(size.width, max(1, size.height - 2), self._marks, self._clock())
        body = self.page.draw(look)[: look.height]
        blank = [Text("")] * (look.height - len(body))
        foot = self._foot(size.width)
        page = [self.page.title(look), *body, *blank]
        lines = [*page[: len(page) + 1 - len(foot)], *foot]  # a message of several lines covers the page's last lines
        self.query_one(Canvas).show([_shown(line, is_ascii=not self._marks.braille) for line in lines])

    def _foot(self, width: int) -> list[Text]:
        if isinstance(self._asked, Ask):
            room = max(1, width - len(self._asked.question) - 2)
            return [Text(self._asked.question, "bold").append(f"{self._typed[-room:]}_")]
        if isinstance(self._asked, Confirm):
            return [Text(line, "bold yellow") for line in fold(self._asked.question, width, MOST_LINES)]
        if self._said:
            return [Text(line, "bold") for line in fold(one_line(self._said), width, MOST_LINES)]
        back = ("esc", "back") if len(self.pages) > 1 else ("q", "quit")
        keys = [*self.page.keys, ("?", "help"), back]
        return [Text(cut("  ".join(f"{key} {words}" for key, words in keys), width), "dim")]

    # -- keys

    def on_key(self, event: Key) -> None:
        """Pass a key to the open question. If no question is open, do what the key means on this page or on all pages.

        textual calls this for each key.
        """
        event.stop()
        key = event.character if event.is_printable and event.character else event.key
        self._said = ""
        if isinstance(self._asked, Ask):
            self._type(key, event)
        elif isinstance(self._asked, Confirm):
            self._answer(self._asked, key)
        else:
            self._follow(self._press(key))
        self.draw_page()

    def on_paste(self, event: Any) -> None:
        """Insert pasted text into the answer to the open question."""
        if isinstance(self._asked, Ask):
            self._typed += "".join(char for char in event.text if char.isprintable())
            self.draw_page()

    def _press(self, key: str) -> Step:
        if key == "q":
            self.exit()
            return None
        if key in ("escape", "backspace"):
            if len(self.pages) > 1:
                self.pages.pop()
                self.look()
            return None
        if key == "?":
            return Open(HelpPage())
        press = self.page.presses().get(key)
        return press() if press is not None else None

    def _follow(self, step: Step) -> None:
        match step:
            case Open(page, instead):
                if instead or isinstance(self.page, HelpPage):
                    self.pages.pop()
                self.pages.append(page)
                self.draw_page()  # drawing tells the page its size, which it needs to read its data
                self.look()
            case Ask():
                self._asked, self._typed = step, step.text
            case Confirm():
                self._asked = step
            case Act(act):
                self._begin(act)
            case Say(words):
                self._said = words
            case Again():
                self.look()

    def _type(self, key: str, event: Key) -> None:
        asked = self._asked
        if not isinstance(asked, Ask):
            return
        if event.key == "enter":
            self._asked = None
            asked.done(self._typed)
            self.look()
        elif event.key == "escape":
            self._asked = None
        elif event.key in ("backspace", "ctrl+h"):
            self._typed = self._typed[:-1]
        elif event.key == "ctrl+u":
            self._typed = ""
        elif event.is_printable:
            self._typed += key

    def _answer(self, asked: Confirm, key: str) -> None:
        self._asked = None
        if key not in ("y", "Y"):
            self._said = "left as it is"
            return
        self._begin(asked.act)

    def _begin(self, act: Callable[[], str]) -> None:
        self._said = "at work ..."
        self.run_worker(self._do(act), exit_on_error=True)

    async def _do(self, act: Callable[[], str]) -> None:
        try:
            self._said = await asyncio.to_thread(act)
        except (OrchError, OSError) as error:
            self._said = _in_words(error)
        self.look()


def _in_words(error: OrchError | OSError) -> str:
    if isinstance(error, OSError):
        return str(error)
    return f"{error.message} ({error.hint})" if error.hint else error.message


def _shown(line: Text, *, is_ascii: bool) -> Text:
    """Return the line with a question mark for each character that is invisible or, with `is_ascii`, not ASCII."""
    text = line.plain
    if not is_printable(text) or (is_ascii and not text.isascii()):
        line.plain = "".join(char if is_printable(char) and (char.isascii() or not is_ascii) else "?" for char in text)
    return line

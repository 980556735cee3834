"""Page 4: a rank's log, with a search. The page follows the log's end or shows any part of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text

from orchestrator.cli.render import escapes
from orchestrator.cli.top.page import Again, Ask, Look, Press, Say, Step
from orchestrator.cli.top.run_pages.base import OfRun
from orchestrator.protocol.quantities import size
from orchestrator.runs.store import RunDir
from orchestrator.views import logs
from orchestrator.views.logs import RankLog
from orchestrator.views.reader import Reader
from orchestrator.views.run import RunView

LESS_AND_MORE = 8  # columns by which the keys left and right scroll
MOST_SEARCHES = 64  # the most parts of 64 MiB that are searched after one key


@dataclass(frozen=True)
class Window:
    """The visible lines of a log, and a message about the last search."""

    page: logs.LogPage
    said: str = ""


class LogPage(OfRun[Window]):
    """The page with one rank's log, which follows the log's end until the user scrolls up."""

    name, number = "log", 4
    keys: ClassVar = (("/", "search"), ("n N", "next, before"), ("[ ]", "rank"), ("f", "follow"), ("g G", "begin, end"))

    def __init__(self, reader: Reader, run: RunDir, rank: int = 0) -> None:
        super().__init__(reader, run)
        self.rank, self.column, self.words = rank, 0, ""
        self.start: int | None = None  # offset of the first visible line, or None to follow the end
        # offset of the line that the last search found, which stays the first visible line even near the log's end
        self._found_at: int | None = None
        self.body_height = 20
        self._said = ""
        self._moves: list[Callable[[RankLog, logs.LogPage], int | str | None]] = []

    def look_at(self, view: RunView) -> Window:
        """Apply the keys that were pressed since the last read, in order, and read the visible lines."""
        self.reader.watched.ask(self.run, self.rank)
        log = self.reader.log(self.run, self.rank)
        page = self._window(log)
        if self._moves:
            self._said = ""  # the message of a search is shown until the next move
        while self._moves:
            move = self._moves.pop(0)(log, page)
            if isinstance(move, str):
                self._said = move
                continue
            self.start = move
            page = self._window(log)
        return Window(page, self._said)

    def _window(self, log: RankLog) -> logs.LogPage:
        if self.start is not None:
            page = log.after(self.start, self.body_height)
            if page.end < log.size or len(page.lines) >= self.body_height or self.start == self._found_at:
                return page
        return log.last(self.body_height)

    def lines(self, body: Window, look: Look) -> list[Text]:
        """Return a heading and the visible lines of the log."""
        self.body_height = max(1, look.height - 1)
        page = body.page
        where = "following" if self.start is None else f"at {100 * page.end / max(1, page.size):.0f} %"
        found = f"; {body.said}" if body.said else ""
        head = Text(f"rank {self.rank}, attempt {page.attempt}, {size(page.size)}, {where}{found}", "bold")
        if page.size == 0:
            return [head, Text(f"no log of rank {self.rank} is here yet")]
        return [head, *(self._line(line.text) for line in page.lines)]

    def _line(self, text: str) -> Text:
        shown = Text.from_ansi(escapes.log_line(text.expandtabs()))
        if self.words:
            shown.highlight_words([self.words], "reverse", case_sensitive=self.words != self.words.lower())
        return shown[self.column :] if self.column else shown

    def own_presses(self) -> dict[str, Press]:
        """Return the keys that scroll and search, with their actions."""
        return {
            "up": lambda: self._go(_up(1)), "k": lambda: self._go(_up(1)),
            "down": lambda: self._go(_down(1)), "j": lambda: self._go(_down(1)),
            "pageup": lambda: self._go(_up(self.body_height)), "pagedown": lambda: self._go(_down(self.body_height)),
            "home": lambda: self._go(lambda _log, _page: 0), "g": lambda: self._go(lambda _log, _page: 0),
            "end": lambda: self._go(_end), "G": lambda: self._go(_end), "f": lambda: self._go(_end),
            "left": lambda: self._shift(-LESS_AND_MORE), "right": lambda: self._shift(LESS_AND_MORE),
            "]": lambda: self._other_rank(1), "[": lambda: self._other_rank(-1),
            "/": lambda: Ask("search: ", self._search, self.words),
            "n": lambda: self._find(backwards=False), "N": lambda: self._find(backwards=True),
        }  # fmt: skip

    def _go(self, move: Callable[[RankLog, logs.LogPage], int | str | None]) -> Step:
        self._moves.append(move)
        return Again()

    def _shift(self, by: int) -> Step:
        self.column = max(0, self.column + by)
        return Again()

    def _other_rank(self, by: int) -> Step:
        last = (self.data.view.row.world_size or 1) - 1 if self.data is not None else 0
        self.rank, self.start, self.column = min(max(0, self.rank + by), max(last, 0)), None, 0
        return Again()

    def _search(self, words: str) -> None:
        self.words = words
        if words:
            self._moves.append(lambda log, page: self._found(log, page.end, backwards=True))

    def _find(self, *, backwards: bool) -> Step:
        if not self.words:
            return Say("nothing is searched for yet: /")
        return self._go(
            lambda log, page: self._found(
                log, page.start if backwards else _after_first_line(page), backwards=backwards
            )
        )

    def _found(self, log: RankLog, start: int, *, backwards: bool) -> int | str:
        """Search for the text from `start` on. Return the offset of the line with the text, or a message if there is no
        such line.
        """
        words, at = self.words, start
        for _ in range(MOST_SEARCHES):
            found = log.find(words, at, backwards=backwards)
            if found.offset is not None:
                self._found_at = log.around(found.offset, 1).start
                return self._found_at
            if found.is_over:
                where, other = ("before", "n") if backwards else ("after", "N")
                return f"no '{words}' {where} this; {other} looks the other way"
            at = found.reached
        return f"no '{words}' within {size(MOST_SEARCHES * logs.SEARCH_BYTES)}"


def _up(lines: int) -> Callable[[RankLog, logs.LogPage], int | str | None]:
    return lambda log, page: log.before(page.start, lines).start


def _down(lines: int) -> Callable[[RankLog, logs.LogPage], int | str | None]:
    def move(log: RankLog, page: logs.LogPage) -> int | None:
        ended = page.end >= log.size
        return None if ended else log.after(page.start, lines).end

    return move


def _end(_log: RankLog, _page: logs.LogPage) -> None:
    return None


def _after_first_line(page: logs.LogPage) -> int:
    return page.lines[1].offset if len(page.lines) > 1 else page.end

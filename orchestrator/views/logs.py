"""Reads pages of one rank's log, and searches in it. A log of any size is read in parts, never as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.errors import StoreError
from orchestrator.protocol.reading import info_of, read_part
from orchestrator.protocol.terminal_lines import lines_of

PAGE_BYTES: Final = 256 << 10  # most bytes of a page
LINE_CHARACTERS: Final = 4096  # most characters of a line; the rest is not shown
SEARCH_BYTES: Final = 64 << 20  # most bytes that one search reads; another search can continue from its end
CHUNK: Final = 1 << 20


@dataclass(frozen=True)
class LogLine:
    """One line as a terminal would show it, and its offset in the log."""

    offset: int
    text: str


@dataclass(frozen=True)
class LogPage:
    """Consecutive lines of a log. The page before ends at the offset `start`, and the next page begins at `end`."""

    attempt: int
    rank: int
    lines: tuple[LogLine, ...]
    start: int
    end: int
    size: int


@dataclass(frozen=True)
class Found:
    """The result of a search: the offset of the match (None without a match), and the offset at which the search
    stopped.
    """

    offset: int | None
    reached: int
    is_over: bool  # the whole rest of the log was searched


class RankLog:
    """One rank's log. If the log was rotated, the older file is its beginning."""

    def __init__(self, path: Path | None, attempt: int, rank: int) -> None:
        self.attempt, self.rank = attempt, rank
        paths = [] if path is None else [path.with_name(f"{path.name}.1"), path]
        self._parts = [(each, size) for each in paths if (size := _size(each)) is not None]
        self.size = sum(size for _, size in self._parts)

    def last(self, lines: int) -> LogPage:
        """Return the last lines."""
        return self.before(self.size, lines)

    def before(self, end: int, lines: int) -> LogPage:
        """Return the lines that end at an offset."""
        end = min(max(0, end), self.size)
        start = max(0, end - PAGE_BYTES)
        data = self._read(start, end - start)
        if start > 0:
            begun = data.find(b"\n", 0, -1) + 1  # 0 if the page is within a longer line
            start, data = start + begun, data[begun:]
        return self._page(start, _split(data)[-max(1, lines) :] if data else [], len(data))

    def after(self, start: int, lines: int) -> LogPage:
        """Return the lines that begin at an offset."""
        start = min(max(0, start), self.size)
        data = self._read(start, PAGE_BYTES)
        if start + len(data) < self.size and (ended := data.rfind(b"\n") + 1):
            data = data[:ended]
        found = _split(data)[: max(1, lines)] if data else []
        return self._page(start, found, sum(map(len, found)))

    def around(self, offset: int, lines: int) -> LogPage:
        """Return a page of `lines` lines around an offset. A third of the lines are before the line at the offset."""
        line = self.before(self._end_of_line(offset), 1).start
        above = self.before(line, lines // 3).start if lines >= 3 else line
        return self.after(above, lines)

    def find(self, words: str, start: int, *, backwards: bool = False, most: int = SEARCH_BYTES) -> Found:
        """Search for a text from an offset on, or backwards. Text without capital letters matches any case."""
        needle = words.encode()
        if not needle:
            return Found(None, start, is_over=True)
        is_exact = words != words.lower()
        at, left = min(max(0, start), self.size), most
        while left > 0 and (at > 0 if backwards else at < self.size):
            low = max(0, at - CHUNK) if backwards else at
            high = at if backwards else min(self.size, at + CHUNK)
            data = self._read(low, high - low + len(needle) - 1)  # the text may begin in this chunk and end after it
            data = data if is_exact else data.lower()
            place = data.rfind(needle) if backwards else data.find(needle)
            if place >= 0:
                return Found(low + place, low + place, is_over=False)
            at, left = low if backwards else high, left - CHUNK
        return Found(None, at, is_over=at <= 0 if backwards else at >= self.size)

    def _end_of_line(self, offset: int) -> int:
        data = self._read(offset, PAGE_BYTES)
        ended = data.find(b"\n")
        return offset + (len(data) if ended < 0 else ended + 1)

    def _page(self, start: int, lines: Sequence[bytes], taken: int) -> LogPage:
        shown: list[LogLine] = []
        at = first = start + taken - sum(map(len, lines))  # `lines` are the last lines of what was read
        for line in lines:
            shown.append(LogLine(at, _text(line)))
            at += len(line)
        return LogPage(self.attempt, self.rank, tuple(shown), first, at, self.size)

    def _read(self, start: int, length: int) -> bytes:
        pieces, begin = [], 0
        for path, size in self._parts:
            low, high = max(start, begin), min(start + length, begin + size)
            if low < high:
                pieces.append(_bytes(path, low - begin, high - low))
            begin += size
        return b"".join(pieces)


def _split(data: bytes) -> list[bytes]:
    """Return the lines with their line ends."""
    *ended, rest = data.split(b"\n")
    return [line + b"\n" for line in ended] + ([rest] if rest else [])


def _text(line: bytes) -> str:
    """Return the text that a terminal shows after a line's last character. For a progress bar, this is the bar's last
    state.
    """
    tail = line[-LINE_CHARACTERS * 4 :] if b"\r" in line.rstrip(b"\r\n") else line[: LINE_CHARACTERS * 4]
    shown = [each for each in lines_of(tail.decode("utf-8", "replace")) if each]
    return shown[-1][:LINE_CHARACTERS] if shown else ""


def _run_of(log: Path) -> Path:
    return log.parents[3]  # RUN/nodes/0/attempt_0/rank_0.log


def _size(path: Path) -> int | None:
    try:
        return info_of(path, _run_of(path)).st_size
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} can't be read: {error.strerror}") from error


def _bytes(path: Path, start: int, length: int) -> bytes:
    try:
        return read_part(path, start, length, _run_of(path))
    except FileNotFoundError:  # the file was rotated or removed meanwhile
        return b""
    except OSError as error:
        raise StoreError(f"{path} can't be read: {error.strerror}") from error

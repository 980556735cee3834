"""Converts a program's output to the lines that a terminal would show, with only the last state of a progress bar.

After a carriage return, the next text replaces the whole line, so that nothing is left of a longer progress bar. A
backspace removes the last character. tqdm's nested bars move the cursor down a line and up again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_LINE = 1 << 16  # a longer line is returned in pieces
MOST_HELD = 8  # rows above the cursor that are kept; rows further up have scrolled away
MOST_DIGITS = 6  # digits in a sequence that moves the cursor; a longer number is printed as text
_SEQUENCE = rf"\x1b\[[0-9]{{0,{MOST_DIGITS}}}[AK]"
_MOVES = re.compile(_SEQUENCE)
_TOKENS = re.compile(rf"[\n\r\b]|{_SEQUENCE}|(?:[^\n\r\b\x1b]|\x1b(?!{_SEQUENCE[4:]}))+")
_UNFINISHED = re.compile(rf"\x1b(\[[0-9]{{0,{MOST_DIGITS}}})?\Z")
_LONGEST_UNFINISHED = 2 + MOST_DIGITS
_CONTROLS = re.compile(r"[\r\b\x1b]")


@dataclass
class _Row:
    text: str = ""
    is_bar: bool = False  # whether the row's text was replaced, or may be replaced


def lines_of(text: str) -> list[str]:
    """Return the lines that a terminal shows after a complete text."""
    reader = TerminalLines()
    return [*reader.feed(text), *reader.end()]


class TerminalLines:
    """Takes text piece by piece, and returns each line when it can't change any more.

    A finished progress bar may still be updated, so it is returned only when a line of another kind follows.
    """

    def __init__(self) -> None:
        self._rows = [_Row()]  # lines that may still change; the last has no end yet
        self._at = 0  # index of the row that is being written
        self._keep: int | None = None  # number of the row's characters that are kept when text arrives; None: all
        self._pending = ""  # the beginning of an incomplete escape sequence

    def feed(self, text: str) -> list[str]:
        """Return the lines that are finished by this text, without line ends."""
        text = self._pending + text
        begun = _UNFINISHED.search(text, max(0, len(text) - _LONGEST_UNFINISHED))
        self._pending = begun[0] if begun else ""
        text = text[: begun.start()] if begun else text
        lines: list[str] = []
        if len(self._rows) == 1 and self._keep is None and not self._rows[0].is_bar and not _CONTROLS.search(text):
            *ended, rest = text.split("\n")
            for line in ended:
                self._write(line, lines)
                lines.append(self._rows[0].text)
                self._rows = [_Row()]
            self._write(rest, lines)
            return lines
        for piece in _TOKENS.findall(text):
            self._take(piece, lines)
        return lines

    def end(self) -> list[str]:
        """Return the remaining lines. Call this after the last text."""
        lines: list[str] = []
        if self._pending:
            self._write(self._pending, lines)
        if not self._rows[-1].text:
            self._rows.pop()
        lines += _given(self._rows)
        self._rows, self._at, self._keep, self._pending = [_Row()], 0, None, ""
        return lines

    @property
    def open_line(self) -> str:
        """Return the line that is being written, else the last progress bar that may change; "" if there is neither."""
        written = [self._rows[self._at], *reversed(self._rows)]
        return next((row.text.rstrip() for row in written if row.text.strip()), "")

    def _take(self, piece: str, lines: list[str]) -> None:
        row = self._rows[self._at]
        if piece == "\r":
            self._keep = 0
        elif piece == "\b":
            self._keep = max(0, (len(row.text) if self._keep is None else self._keep) - 1)
        elif piece == "\n":
            self._end_row(lines)
        elif not _MOVES.fullmatch(piece):
            self._write(piece, lines)
        elif piece.endswith("A"):
            self._at = max(0, self._at - max(1, int(piece[2:-1] or 1)))
            self._keep = None
        else:
            row.text = "" if piece[2:-1] == "2" else row.text[: self._keep]

    def _write(self, text: str, lines: list[str]) -> None:
        row = self._rows[self._at]
        if text and self._keep is not None:
            is_cleared = bool(row.text) and not row.text.strip()  # cleared with spaces for a line of another kind
            row.text, row.is_bar = row.text[: self._keep], not is_cleared
            self._keep = None
        row.text += text
        if len(row.text) > MAX_LINE:
            *full, row.text = [row.text[at : at + MAX_LINE] for at in range(0, len(row.text), MAX_LINE)]
            lines += full

    def _end_row(self, lines: list[str]) -> None:
        self._at, self._keep = self._at + 1, None
        if self._at < len(self._rows):
            self._keep = 0
        else:
            self._rows.append(_Row())
        above = self._rows[: self._at]
        if len(above) > MOST_HELD or not above[0].is_bar or any(row.text.strip() and not row.is_bar for row in above):
            lines += _given(above)
            self._rows, self._at = self._rows[self._at :], 0


def _given(rows: list[_Row]) -> list[str]:
    """Return the text of rows that the program can no longer overwrite, as one line for each row. A progress bar
    that was cleared leaves no line.
    """
    return [row.text.rstrip() if row.is_bar else row.text for row in rows if row.text.strip() or not row.is_bar]

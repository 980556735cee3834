"""Renders tables, folded text, ages and counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import groupby
from typing import TypeVar

from orchestrator.cli.render.escapes import one_line
from orchestrator.protocol.hostlist import FOLD_FROM
from orchestrator.protocol.quantities import duration, size

GAP = "  "

T = TypeVar("T")
Style = Callable[[str, str], str]  # (text, colour) -> text


COLOURS = {"succeeded": "green", "failed": "red", "cancelled": "yellow", "running": "cyan", "restarting": "magenta"}


def plain(text: str, _colour: str) -> str:
    """Return the text unchanged. This is the `Style` that uses no colours."""
    return text


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], style: Style = plain, colour_of: int | None = None, *,
    width: int | None = None, spare: Sequence[str] = (), most: int | None = None,
) -> str:  # fmt: skip
    """Return a table whose columns are as wide as their longest cells. The words in column `colour_of` are coloured.

    If `width` is given, no line is longer. Columns in `spare` are then left out, in that order, until the other columns
    fit. If a row's last cell still does not fit, it is folded onto at most `most` lines below the row.
    """
    lines = [[one_line(cell) for cell in line] for line in (header, *rows)]
    kept = list(range(len(header)))

    def room() -> float:
        """Return the width that is left for the last column."""
        taken = sum(max(columns(line[column]) for line in lines) + len(GAP) for column in kept[:-1])
        return math.inf if width is None else width - taken

    for name in spare:
        if room() < len(header[-1]):
            kept.remove(header.index(name))
    left, widths = room(), {column: max(columns(line[column]) for line in lines) for column in kept}
    text = []
    for number, line in enumerate(lines):
        cells = [line[column] + " " * (widths[column] - columns(line[column])) for column in kept]
        below = [] if columns(line[-1]) <= left else fold(line[-1], (width or 0) - 2 * len(GAP), most)
        cells[-1] = "" if below else cells[-1].rstrip()
        if number and colour_of in kept:
            place = kept.index(colour_of)
            cells[place] = style(cells[place], COLOURS.get(line[colour_of], ""))
        text += [GAP.join(cells).rstrip(), *(f"{2 * GAP}{part}" for part in below)]
    return "\n".join(text)


def tables(header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None, *, repeat: int) -> str:
    """Return the columns as several tables, one below the other, so that no line is wider than `width`.

    Each table begins with the first `repeat` columns.
    """
    widths = [max(columns(line[column]) for line in (header, *rows)) + len(GAP) for column in range(len(header))]
    first, parts, room = list(range(repeat)), list[list[int]](), -1.0
    for column in range(repeat, len(header)):
        if not parts or widths[column] > room:
            parts.append([])
            room = math.inf if width is None else width + len(GAP) - sum(widths[:repeat])
        parts[-1].append(column)
        room -= widths[column]
    chosen = [[*first, *part] for part in parts] or [first]
    return "\n\n".join(
        table([header[column] for column in part], [[row[column] for column in part] for row in rows])
        for part in chosen
    )


def columns(text: str) -> int:
    """Return the number of terminal columns that the text needs."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in ("W", "F")) for char in text
    )


def cut(text: str, width: int) -> str:
    """Return the text cut to `width` columns, with `...` in place of the rest."""
    if columns(text) <= width:
        return text
    while text and columns(text) > max(0, width - 3):
        text = text[: -max(1, (columns(text) - width) // 2)]
    return f"{text.rstrip()}..."[: max(0, width)]


def fold(text: str, width: int, most: int | None = None) -> list[str]:
    """Return the text on at most `most` lines of at most `width` columns, broken between words if possible."""
    width, lines, rest = max(1, width), list[str](), text
    while columns(rest) > width and (most is None or len(lines) < most - 1):
        end = width
        while columns(rest[:end]) > width:
            end -= 1
        end = max(1, end)
        blank = rest.rfind(" ", 1, end + 1)
        lines.append(rest[: blank if blank > 0 else end].rstrip())
        rest = rest[blank if blank > 0 else end :].lstrip()
    return [*lines, rest.rstrip() if most is None else cut(rest.rstrip(), width)]


def alike(rows: Iterable[T], key: Callable[[T], object]) -> Iterator[list[T]]:
    """Yield groups of consecutive rows with the same key. The rows of a small group are yielded one by one."""
    for _, group in groupby(rows, key):
        together = list(group)
        yield from [together] if len(together) >= FOLD_FROM else [[row] for row in together]


def ago(created: float, now: float) -> str:
    """Return how long ago a time was, such as `8.3 s ago`; a dash if the time is unknown."""
    return f"{duration(now - created)} ago" if created else "-"


def counted(what: int | Sized, noun: str) -> str:
    """Return a number, or the size of a collection, with a noun in the right form: `1 rank`, `2 ranks`."""
    count = what if isinstance(what, int) else len(what)
    return f"{count} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"


def output_files(count: int, total: float) -> str:
    """Return the number and total size of output files, such as `3 output files (1.4 MiB)`."""
    return f"{counted(count, 'output file')} ({size(total)})"

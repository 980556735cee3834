"""Tables, and times and sizes as people read them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TypeVar

from orchestrator.cli.render.escapes import one_line
from orchestrator.protocol.hostlist import FOLD_FROM

T = TypeVar("T")
Style = Callable[[str, str], str]  # (text, colour) -> text


COLOURS = {"succeeded": "green", "failed": "red", "cancelled": "yellow", "running": "cyan", "restarting": "magenta"}


def plain(text: str, _colour: str) -> str:
    """Return the text as it is: the style without colours."""
    return text


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], style: Style = plain, colour_of: int | None = None
) -> str:
    """Return columns as wide as their longest cell; one column may be coloured by its word."""
    lines = [[one_line(cell) for cell in line] for line in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    text = []
    for number, line in enumerate(lines):
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        if number and colour_of is not None:
            cells[colour_of] = style(cells[colour_of], COLOURS.get(line[colour_of], ""))
        text.append("  ".join(cells).rstrip())
    return "\n".join(text)


def alike(rows: Iterable[T], key: Callable[[T], object]) -> Iterator[list[T]]:
    """Yield neighbours with the same key together where they are many, and one by one where they are a few."""
    for _, group in groupby(rows, key):
        together = list(group)
        yield from [together] if len(together) >= FOLD_FROM else [[row] for row in together]


def duration(seconds: float | None) -> str:
    """Return seconds as `8.3 s`, `2 min 05 s`, `3 h 12 min` or `4 d 2 h`."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if round(seconds, 1) < 60:
        return f"{max(0.0, seconds):.1f} s"  # below nought only where two hosts' clocks differ
    minutes, rest = divmod(round(seconds) if seconds < 60 else int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def ago(created: float, now: float) -> str:
    """Return how long ago a moment was: `8.3 s ago`."""
    return f"{duration(now - created)} ago" if created else "-"


def clock() -> float:
    """Return the time that ages are counted from."""
    return time.time()


def size(count: float) -> str:
    """Return a size as `812 B`, `1.4 MB` or `2.0 GB`; powers of 1024."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def output_files(count: int, total: float) -> str:
    """Return `3 output files (1.4 MB)`."""
    return f"{count} output file{'s' * (count != 1)} ({size(total)})"

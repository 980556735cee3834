"""Characters for drawing: blocks and braille, or ASCII if the locale is not UTF-8."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from rich.text import Text

from orchestrator.cli.render.escapes import one_line
from orchestrator.cli.render.tables import GAP, columns, cut
from orchestrator.protocol.hostlist import span
from orchestrator.protocol.quantities import duration
from orchestrator.views.heat import HeatMap
from orchestrator.views.run import RankRow, RankStatus


@dataclass(frozen=True)
class Marks:
    """A set of characters for drawing."""

    levels: str  # the characters for cells of a heat map, from low to high
    braille: bool  # whether curves are drawn with braille dots; if not, everything is ASCII


UNICODE: Final = Marks("▁▂▃▄▅▆▇█", braille=True)
ASCII: Final = Marks(".:-=+*#@", braille=False)

RANK_LETTERS: Final = {
    RankStatus.WAITING: "w", RankStatus.RUNNING: "r", RankStatus.DONE: "d", RankStatus.STOPPED: "s",
    RankStatus.FAILED: "F", RankStatus.LOST: "L",
}  # fmt: skip
RANK_COLOURS: Final = {
    RankStatus.DONE: "green",
    RankStatus.FAILED: "red",
    RankStatus.LOST: "red",
    RankStatus.STOPPED: "yellow",
}
_WORST_FIRST: Final = (
    RankStatus.FAILED, RankStatus.LOST, RankStatus.RUNNING, RankStatus.WAITING, RankStatus.STOPPED, RankStatus.DONE
)  # fmt: skip


def level(value: float, usual: float) -> int:
    """Return how slow a step is, from 0 to 7, by comparing its time `value` with the `usual` time.

    The usual time has level 1, twice the usual time has level 5, and almost three times the usual time has level 7.
    """
    if value <= 0 or usual <= 0:
        return 0
    return min(7, max(0, 1 + round(4 * math.log2(value / usual))))


def heat(value: float | None, usual: float, marks: Marks) -> Text:
    """Return the cell of a heat map for a step time. Its height and colour show how slow the step is."""
    if value is None:
        return Text(" ")
    number = level(value, usual)
    return Text(marks.levels[number], "red" if number >= 5 else "yellow" if number >= 3 else "cyan")


def share(percent: float | None, marks: Marks) -> Text:
    """Return the cell of a heat map for a utilization in percent. Values above 100 are shown as 100."""
    if percent is None:
        return Text(" ")
    return Text(marks.levels[min(7, max(0, int(percent * 8 / 100)))], "yellow" if percent < 5 else "cyan")


def margin_of(found: HeatMap) -> int:
    """Return the width of the names of a heat map's rows."""
    return max((len(span(row.first, row.last)) for row in found.rows), default=3) + 1


def heat_map(found: HeatMap, rows: int, cell: Callable[[float | None], Text], now: float) -> list[Text]:
    """Return a line for each of the first `rows` rows of a heat map, then a line with the time at its left end."""
    margin, made = margin_of(found), list[Text]()
    for row in found.rows[:rows]:
        made.append(Text.assemble(span(row.first, row.last).ljust(margin), *map(cell, row.values)))
    return [*made, Text(f"{'':{margin}}{duration(now - found.times[0])} ago ... now")]


def rank_cell(ranks: Sequence[RankRow], usual: float, marks: Marks) -> Text:
    """Return one cell for a group of consecutive ranks. It shows the worst state of the ranks or, if that state is
    "running", the time of the slowest step.
    """
    worst = min((rank.state for rank in ranks), key=_WORST_FIRST.index)
    slowest = max((rank.step_time or 0.0 for rank in ranks if rank.state is RankStatus.RUNNING), default=0.0)
    if worst is RankStatus.RUNNING and slowest > 0:
        return heat(slowest, usual, marks)
    return Text(RANK_LETTERS[worst], RANK_COLOURS.get(worst, ""))


def strip(ranks: Sequence[RankRow], width: int, rows: int, marks: Marks) -> list[Text]:
    """Return all ranks as cells in at most `rows` rows. Each row begins with its first and last rank."""
    if not ranks:
        return []
    margin = len(f"{ranks[-1].rank}-{ranks[-1].rank}") + 1
    cells = max(8, width - margin - 1)
    each = -(-len(ranks) // (cells * max(1, rows)))  # number of ranks in a cell
    usual = usual_of(rank.step_time for rank in ranks)
    made = []
    for first in range(0, len(ranks), cells * each):
        row = ranks[first : first + cells * each]
        line = Text(f"{row[0].rank}-{row[-1].rank}".ljust(margin))
        for start in range(0, len(row), each):
            line.append_text(rank_cell(row[start : start + each], usual, marks))
        made.append(line)
    return made


def usual_of(values: Iterable[float | None]) -> float:
    """Return the median of the known values, or 0 if there are none."""
    known = [value for value in values if value is not None]
    return median(known) if known else 0.0


def cells(header: Sequence[str], rows: Sequence[Sequence[str]], width: int, spare: Sequence[str] = ()) -> list[Text]:
    """Return a header and rows as lines of a table. The last column gets the remaining width, and longer cells are cut.

    Columns in `spare` are left out, in that order, until the last column has enough room.
    """
    lines = [[one_line(cell) for cell in line] for line in (header, *rows)]
    kept = list(range(len(header)))
    widths = {column: max(columns(line[column]) for line in lines) for column in kept}

    def room() -> int:
        return width - sum(widths[column] + len(GAP) for column in kept[:-1])

    for name in spare:
        if room() < min(24, widths[len(header) - 1]):
            kept.remove(header.index(name))
    made = []
    for line in lines:
        parts = [line[column] + " " * (widths[column] - columns(line[column])) for column in kept[:-1]]
        made.append(Text(GAP.join([*parts, cut(line[kept[-1]], max(0, room()))])))
    made[0].stylize("bold")
    return made


def paint(line: Text, word: str, colour: str) -> Text:
    """Colour the first occurrence of a word in a line, and return the line."""
    at = line.plain.find(word)
    if colour and word and at >= 0:
        line.stylize(colour, at, at + len(word))
    return line

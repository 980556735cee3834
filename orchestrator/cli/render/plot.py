"""Draws curves as text: coloured braille dots, or an ASCII mark for each curve."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.cli.render.escapes import one_line
from orchestrator.cli.render.tables import Style, plain
from orchestrator.protocol import quantities

COLOURS: Final = ("cyan", "yellow", "green", "magenta", "red", "blue")
MARKS: Final = "*+xo#@%&"
_DOTS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # bits of a braille cell, by column and row
LEAST: Final = (20, 5)  # the least columns and rows of a plot, in cells
Point = tuple[float, float]
Cell = tuple[int, int]  # (column, row), where row 0 is the top


@dataclass(frozen=True)
class Curve:
    """One curve of a plot: its name, and its points (x, y)."""

    name: str
    points: tuple[Point, ...]  # sorted by x


def plot_page(
    metric: str, curves: Sequence[Curve], size: tuple[int, int], *, braille: bool, style: Style = plain, x: str = "step"
) -> str:
    """Return a plot of the curves, with the range of both axes and a legend. `size` is the size of the plot: (columns,
    lines).

    Curves of braille dots differ only by colour, so `braille` needs a `style` with colours if there are several curves.
    """
    xs, ys = ([point[axis] for curve in curves for point in curve.points] for axis in (0, 1))
    low, high = min(ys), max(ys)
    middle = (low + high) / 2
    labels = [quantities.number(value) for value in (high, middle, low)]
    margin = max(map(len, labels))
    width = max(LEAST[0], size[0] - margin - 3)
    height = max(LEAST[1], size[1] - len(curves) - 4)
    dots = (2, 4) if braille else (1, 1)
    box = (min(xs), max(xs), low, high)
    layers = [_layer(curve.points, box, (width, height), dots) for curve in curves]
    said = {0: labels[0], height // 2: labels[1], height - 1: labels[2]}
    edge, corner, floor = ("│", "└", "─") if braille else ("|", "+", "-")
    lines = [one_line(metric)]
    for row in range(height):
        cells = "".join(_cell(layers, (column, row), braille, style) for column in range(width))
        lines.append(f"{said.get(row, ''):>{margin}} {edge}{cells}".rstrip())
    first, last = f"{box[0]:g}", f"{box[1]:g}"
    lines.append(f"{'':>{margin}} {corner}{floor * width}")
    room = width - len(first) - len(last)
    between = f"{x:^{room}}" if room > len(x) else " "  # the name of the axis is omitted if the numbers are too long
    lines.append(f"{'':>{margin}}  {first}{between}{last}")
    return "\n".join([*lines, *_legend(curves, braille, style)])


def _layer(points: Iterable[Point], box: tuple[float, float, float, float], size: Cell, dots: Cell) -> dict[Cell, int]:
    """Return the cells that a curve passes through, each with the bits of its braille dots."""
    left, right, low, high = box
    columns, rows = size[0] * dots[0] - 1, size[1] * dots[1] - 1
    found: dict[Cell, int] = {}
    before: Cell | None = None
    for x, y in points:
        column = round((x - left) / (right - left) * columns) if right > left else 0
        row = round((high - y) / (high - low) * rows) if high > low else rows // 2
        for dot in _line(before or (column, row), (column, row)):
            cell = (dot[0] // dots[0], dot[1] // dots[1])
            found[cell] = found.get(cell, 0) | _DOTS[dot[0] % dots[0]][dot[1] % dots[1]]
        before = (column, row)
    return found


def _line(start: Cell, end: Cell) -> Iterator[Cell]:
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    for step in range(steps + 1):
        yield tuple(round(a + (b - a) * step / steps) for a, b in zip(start, end, strict=True))  # type: ignore[misc]


def _cell(layers: Sequence[dict[Cell, int]], cell: Cell, braille: bool, style: Style) -> str:
    """Return the character for a cell. If several curves pass through the cell, the character belongs to the first of
    them.
    """
    number = next((number for number, layer in enumerate(layers) if cell in layer), None)
    if number is None:
        return " "
    char = chr(0x2800 + layers[number][cell]) if braille else MARKS[number % len(MARKS)]
    return style(char, COLOURS[number % len(COLOURS)])


def _legend(curves: Sequence[Curve], braille: bool, style: Style) -> Iterator[str]:
    width = max(len(curve.name) for curve in curves)
    for number, curve in enumerate(curves):
        mark = style("━" if braille else MARKS[number % len(MARKS)], COLOURS[number % len(COLOURS)])
        values = [y for _, y in curve.points]
        last, lowest, highest = map(quantities.number, (values[-1], min(values), max(values)))
        facts = f"last {last}  lowest {lowest}  highest {highest}"
        yield f"{mark} {one_line(curve.name):<{width}}  {facts}"

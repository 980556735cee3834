"""Reads metrics from CSV files, files of JSON lines, and the trainer_state.json of Hugging Face's Trainer."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.node.agent.metrics.following import Followed, IsOver, Point, UnreadableError, new_lines
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.reading import info_of, read_regular

MOST_OF_A_STATE = 4 << 20  # bytes of a trainer_state.json, which has about 150 bytes for each line of its log
_STEPS = ("step", "global_step", "_step", "iteration", "iter", "epoch")
_TIMES = ("time", "timestamp", "_timestamp", "wall_time")
_IS_TIME = (1e8, 1e11)  # seconds since 1970; smaller numbers count from the start of the program
_NO_METRICS = frozenset({*_STEPS, *_TIMES, "kind", "attempt"}) - {"epoch"}


class CsvFile:
    """A CSV file with a header, such as Lightning's metrics.csv. If a metric is added, Lightning rewrites the file."""

    def __init__(self, followed: Followed) -> None:
        self.followed = followed
        self.header: list[str] = []
        self.rows = 0

    def read(self, is_over: IsOver) -> Iterator[Point]:
        """Yield the new rows. A row is a new header if it consists of words and one of them is the name of a step
        column.
        """
        for line, is_first in new_lines(self.followed, is_over):
            cells = _cells(line)
            numbers = [_number(cell) for cell in cells]
            if is_first or (all(number is None for number in numbers) and not set(_STEPS).isdisjoint(cells)):
                self.header, self.rows = cells, 0 if is_first else self.rows
                continue
            self.rows += 1
            row = {name: number for name, number in zip(self.header, numbers) if number is not None}
            if (point := point_of(row, self.rows)) is not None:
                yield point


class JsonLines:
    """A file with a JSON object in each line."""

    def __init__(self, followed: Followed) -> None:
        self.followed = followed
        self.rows = 0

    def read(self, is_over: IsOver) -> Iterator[Point]:
        """Yield the points of new lines that contain a number."""
        for line, is_first in new_lines(self.followed, is_over):
            self.rows = 1 if is_first else self.rows + 1
            try:
                row = parse_json(line)
            except ValueError:
                continue
            if isinstance(row, dict) and (point := point_of(row, self.rows)) is not None:
                yield point


class TrainerState:
    """A trainer_state.json. Trainer writes the whole file with each checkpoint and at the end of training."""

    def __init__(self, followed: Followed) -> None:
        self.followed = followed
        self.stamp: tuple[int, int, int] | None = None

    def read(self, is_over: IsOver) -> Iterator[Point]:
        """If the file has changed, yield all entries of its log. If the file is incomplete, yield nothing.

        Raises UnreadableError if the file is too large.
        """
        info = info_of(self.followed.path, self.followed.below)
        stamp = (info.st_ino, info.st_size, info.st_mtime_ns)
        if stamp == self.stamp or is_over():
            return
        if info.st_size > MOST_OF_A_STATE:
            raise UnreadableError(f"the file is larger than {MOST_OF_A_STATE >> 20} MiB")
        self.stamp = stamp
        try:
            state = parse_json(read_regular(self.followed.path, MOST_OF_A_STATE, self.followed.below))
        except ValueError:
            return
        log = state.get("log_history") if isinstance(state, dict) else None
        for row in log if isinstance(log, list) else ():
            if isinstance(row, dict) and (point := point_of(row, None)) is not None:
                yield point


def point_of(row: Mapping[str, Any], number: int | None) -> Point | None:
    """Return a row as a point; None if the row has no metric or no step. The step is the value under the first known
    step name that the row has, such as `global_step`. Without such a name, the step is `number`.
    """
    known = {name: value for name, value in row.items() if isinstance(name, str) and _is_number(value)}
    step = next((known[name] for name in _STEPS if name in known), number)
    values = {name: float(value) for name, value in known.items() if name and name not in _NO_METRICS}
    values = {name: value for name, value in values.items() if not name.startswith("_")}
    if step is None or not values:
        return None
    time = next((known[name] for name in _TIMES if name in known and _IS_TIME[0] < known[name] < _IS_TIME[1]), None)
    return Point(step, time, values)


def _cells(line: bytes) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line.decode("utf-8", "replace")]), [])]
    except csv.Error:
        return []


def _number(cell: str) -> float | None:
    try:
        return int(cell) if cell.isdecimal() and len(cell) < 16 else float(cell)
    except ValueError:
        return None


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer in JSON may have any length
        return False

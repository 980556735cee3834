"""Parses `--sweep KEY=VALUES` into axes, and returns all combinations of the axes' values as points. This module has no
side effects.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from orchestrator.errors import UsageError
from orchestrator.runs.sweeps import Point
from orchestrator.specs.documents.diagnostics import near_field

MOST_POINTS: Final = 5000
SHARED: Final = {
    "name": "all points have one name",
    "version": "it says how the file is written",
    "code": "all points run the same code",
}
_RANGE: Final = re.compile(r"(-?\d{1,9})\.\.(-?\d{1,9})")
_OPTION: Final = re.compile(r"--?[A-Za-z][\w.:-]*")
_CLOSES: Final = {"[": "]", "{": "}"}


@dataclass(frozen=True)
class Axis:
    """One key of a sweep: the word that the user wrote for it, the job's field that it sets, and the values of the
    field as texts.
    """

    word: str
    field: str  # job.A.B, or the option of a program
    values: tuple[str, ...]

    @property
    def is_argument(self) -> bool:
        """Return True if the key is an option of the job's own program."""
        return self.word.startswith("-")

    def argument(self, value: str) -> tuple[str, ...]:
        """Return the program's arguments for a value. Outer quotes are removed, as a shell does."""
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        return (f"{self.word}={value}",) if self.word.startswith("--") else (self.word, value)


def read_axes(options: Iterable[str], fields: Collection[str], sets: Iterable[str], *, trains: bool) -> list[Axis]:
    """Return the axes of the options `--sweep`.

    `fields` are the names of the fields of `training:`. `trains` tells whether the job has that section. Raises
    UsageError if an axis can't be parsed, or if two axes, or an axis and a --set, set the same field.
    """
    axes: list[Axis] = []
    taken = taken_by(sets, fields)
    for text in options:
        where = f"--sweep {text if len(text) <= 120 else text[:117] + '...'}"
        word, equals, rest = text.partition("=")
        word = word.strip()
        if not equals or not word:
            raise UsageError(f"{where}: the option can't be read", "write KEY=VALUES, as in --sweep lr=1e-2,1e-3")
        field = field_of(word, fields, where, trains=trains)
        take(field, where, taken)
        axes.append(Axis(word, field, read_values(rest, where)))
    return axes


Taken = list[tuple[str, str]]  # (field, the option that sets it)


def taken_by(sets: Iterable[str], fields: Collection[str]) -> Taken:
    """Return a pair for each `--set`: the field that it sets, and its text for error messages. A key in `fields` may
    be written without `job.training.`.
    """
    words = [(text.partition("=")[0].strip(), f"--set {text}") for text in sets]
    return [(f"job.training.{word}" if word in fields else word, said) for word, said in words]


def take(field: str, where: str, taken: Taken) -> None:
    """Append a field to `taken`. Raises UsageError if `taken` has the same field, a part of it, or a field that
    contains it.
    """
    for other, said in taken:
        if field == other or field.startswith(f"{other}.") or other.startswith(f"{field}."):
            raise UsageError(f"{where}: {said} sets the same field, {min(field, other, key=len)}", "leave one out")
    taken.append((field, where))


def field_of(word: str, fields: Collection[str], where: str, *, trains: bool) -> str:
    """Return the job's field for a key of a sweep or of a search.

    A key is a dotted field as in --set, a field of `training:`, an option of the task, or an argument such as --lr.
    """
    option = "--sweep " if where.startswith("--sweep ") else ""  # without --sweep, the key is in a file
    head, *rest = word.split(".")
    if word.startswith("-"):
        return _argument(word, fields, where, option, trains=trains)
    if head == "profile":
        raise UsageError(
            f"{where}: a sweep varies fields of the job, not of the profile", "submit once for each profile"
        )
    if head == "job":
        if not rest or not all(rest):
            raise UsageError(f"{where}: names no field of the job", f"write job.FIELD, as in {option}job.env.DEPTH")
        if rest[0] in SHARED:
            raise UsageError(f"{where}: job.{rest[0]} can't differ in a sweep: {SHARED[rest[0]]}")
        return word
    if rest:
        meant = f"--{rest[-1]}" if head == "args" else near_field(word)
        hint = (
            f"did you mean {option}{meant}=...?"
            if meant.startswith(("job.", "--"))
            else f"write job.FIELD, as in {option}job.env.DEPTH"
        )
        raise UsageError(f"{where}: '{word}' is not a field of the job", hint)
    if not trains:
        hint = f"did you mean {option}--{word}=..., an argument of the job's own program?"
        raise UsageError(f"{where}: '{word}' is short for a field of `training`, which this job doesn't have", hint)
    if word in fields:
        return f"job.training.{word}"
    if near := difflib.get_close_matches(word, fields, n=1, cutoff=0.75):  # the task would ignore a misspelt option
        hint = f"did you mean {near[0]}? An option of the task is job.training.options.{word}"
        raise UsageError(f"{where}: '{word}' is not a field of `training`", hint)
    return f"job.training.options.{word}"


def _argument(word: str, fields: Collection[str], where: str, option: str, *, trains: bool) -> str:
    """Return the field name of an option of the job's own program, such as `job.args --lr`."""
    if not _OPTION.fullmatch(word):
        raise UsageError(f"{where}: '{word}' is not an option of a program", "write it as the program takes it: --lr")
    if trains and (name := word.lstrip("-").replace("-", "_")) in fields:
        raise UsageError(f"{where}: {word} is a field of `training`", f"did you mean {option}{name}=...?")
    return f"job.args {word}"


def read_values(text: str, where: str) -> tuple[str, ...]:
    """Return the values of `1e-2,1e-3` or `0..4`, in order.

    Raises UsageError if there are none, or if a value is repeated.
    """
    values: list[str] = []
    for part in _parts(text, where):
        if match := _RANGE.fullmatch(part):
            first, last = int(match[1]), int(match[2])
            if abs(last - first) >= MOST_POINTS:
                raise UsageError(f"{where}: {part} has more than {MOST_POINTS} values", "sweep over fewer values")
            step = 1 if last >= first else -1
            values += [str(number) for number in range(first, last + step, step)]
        elif part:
            values.append(part)
        else:
            raise UsageError(f"{where}: a value is empty", "write null for no value, '' for an empty text")
    if twice := next((value for value, count in Counter(values).items() if count > 1), None):
        raise UsageError(f"{where}: the value {twice} is given twice", "leave one of them out")
    return tuple(values)


def _parts(text: str, where: str) -> list[str]:
    """Split the text at commas outside of quotes and brackets."""
    parts, ends, quote = [""], list[str](), ""
    for char in text:
        if char == "," and not ends and not quote:
            parts.append("")
            continue
        parts[-1] += char
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in _CLOSES:
            ends.append(_CLOSES[char])
        elif ends and char == ends[-1]:
            ends.pop()
    if ends or quote:
        raise UsageError(f"{where}: {ends[-1] if ends else quote} is missing", "close the quote or bracket")
    return [part.strip() for part in parts]


def points_of(axes: Sequence[Axis]) -> list[Point]:
    """Return every combination of the axes' values; the last axis varies fastest.

    Raises UsageError if there are too many.
    """
    count = 1
    for axis in axes:
        count *= len(axis.values)
    if count > MOST_POINTS:
        raise UsageError(f"the sweep has {count} points, and may have at most {MOST_POINTS}", "sweep over fewer values")
    return [point_at(axes, index, values) for index, values in enumerate(product(*(axis.values for axis in axes)))]


def point_at(axes: Sequence[Axis], index: int, values: Sequence[str]) -> Point:
    """Return the point of a sweep at which each axis has the given value. `values` has the value of each axis as
    text.
    """
    pairs = list(zip(axes, values, strict=True))
    return Point(
        index,
        tuple((axis.word, value) for axis, value in pairs),
        tuple(f"{axis.field}={value}" for axis, value in pairs if not axis.is_argument),
        tuple(word for axis, value in pairs if axis.is_argument for word in axis.argument(value)),
    )

"""How much Python does for something, as a number that is the same on every machine: its instructions, not its time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def instructions(work: Callable[[], object], *modules: ModuleType) -> int:
    """Return how many instructions of Python's the work takes; a loop in C counts as one, so see Counted and Word.

    Where modules are named, only theirs are counted.
    """
    count, files = 0, {module.__file__ for module in modules}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if files and frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


class Counted(dict[_Key, _Value]):
    """A dict that is gone through by Python's own instructions, also by set(), tuple() and their like."""

    def __iter__(self) -> Iterator[_Key]:
        yield from super().__iter__()

    def values(self) -> Any:
        return [self[key] for key in self]


class Word(str):
    """A text that is compared by Python's own instructions, also by list.count() and `in`."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

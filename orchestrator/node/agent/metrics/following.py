"""Reads a file that another program appends to or rewrites. Each read continues where the last one ended, in pieces of
limited size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Callable, NamedTuple

from orchestrator.protocol.reading import opened

MOST_OF_A_LINE = 1 << 18  # bytes; a longer line is skipped
MARK_BYTES = 64

IsOver = Callable[[], bool]
"""Returns whether the time for the present reading has passed."""


class UnreadableError(ValueError):
    """The rest of the file can't be read, because it is damaged or too large."""


class Point(NamedTuple):
    """The metrics of one step in a file."""

    step: float
    time: float | None  # the time in seconds since 1970; None if the file has no times
    values: Mapping[str, float]


@dataclass
class Followed:
    """A file, and the offset up to which it was read.

    `mark` holds the first bytes of the file and the last bytes before `offset`. If these bytes have changed at the next
    read, the file was rewritten, and is read from its beginning.
    """

    path: str
    below: str  # symbolic links below this folder are not followed
    offset: int = 0
    mark: bytes = b""

    @contextlib.contextmanager
    def open(self) -> Iterator[tuple[BinaryIO, bool]]:
        """Yield the file at the offset, and whether it is read from its beginning. At the end of the block, store the
        bytes before the new offset as the mark. Raises OSError on failure.
        """
        with opened(self.path, self.below) as file:
            if self.offset and _mark(file, self.offset) != self.mark:
                self.offset = 0
            file.seek(self.offset)
            try:
                yield file, self.offset == 0
            finally:
                self.mark = _mark(file, self.offset)


def _mark(file: BinaryIO, offset: int) -> bytes:
    file.seek(0)
    first = file.read(min(MARK_BYTES, offset))
    file.seek(max(0, offset - MARK_BYTES))
    return first + file.read(min(MARK_BYTES, offset))


def new_lines(followed: Followed, is_over: IsOver) -> Iterator[tuple[bytes, bool]]:
    """Yield (line, whether it is the file's first line) for each complete line that was appended."""
    with followed.open() as (file, _):
        is_rest = False
        while not is_over() and (line := file.readline(MOST_OF_A_LINE)):
            if not line.endswith(b"\n") and len(line) < MOST_OF_A_LINE:
                break  # the line is incomplete, and is read again later
            is_first, was_rest = followed.offset == 0, is_rest
            followed.offset += len(line)
            is_rest = not line.endswith(b"\n")
            if not is_rest and not was_rest:
                yield line, is_first

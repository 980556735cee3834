"""Reading a run's logs, metrics and progress from its directory, also while they grow."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.errors import StoreError
from orchestrator.protocol.json_text import parse_json
from orchestrator.runs.store import RunDir

CHUNK = 1 << 18
MAX_LINE = 1 << 16  # a longer line is shown in pieces; a progress bar may never end one
_PATH = re.compile(r"nodes/(\d+)/attempt_(\d+)/rank_(\d+)\.log")
_LINE_END = re.compile(rb"\r\n|\r|\n")


@dataclass(frozen=True)
class LogFile:
    """The output of one rank in one attempt."""

    attempt: int
    rank: int
    node: int
    path: Path


@dataclass(frozen=True)
class Selection:
    """Which ranks to read; rank 0 when nothing is chosen."""

    rank: int | None = None
    node: int | None = None
    everything: bool = False

    @property
    def takes_several(self) -> bool:
        """Tell whether it may be more than one rank's."""
        return self.everything or self.node is not None

    def takes(self, log: LogFile) -> bool:
        """Tell whether this log is among those to read."""
        if self.everything:
            return True
        if self.node is not None:
            return log.node == self.node and self.rank in (None, log.rank)
        return log.rank == (self.rank or 0)


def log_files(run: RunDir, selection: Selection) -> list[LogFile]:
    """Return the chosen logs that exist, by attempt and rank."""
    found = []
    for path in run.path.glob("nodes/*/attempt_*/rank_*.log"):
        match = _PATH.fullmatch(str(path.relative_to(run.path)))
        if match:
            log = LogFile(int(match[2]), int(match[3]), int(match[1]), path)
            if selection.takes(log):
                found.append(log)
    return sorted(found, key=lambda log: (log.attempt, log.rank))


@dataclass
class Tail:
    """Reads what has been added to the chosen logs since the last look."""

    run: RunDir
    selection: Selection
    offsets: dict[Path, int] = field(default_factory=dict)
    inodes: dict[Path, int] = field(default_factory=dict)
    partial: dict[Path, bytes] = field(default_factory=dict)
    after_return: set[Path] = field(default_factory=set)  # a \n that comes now ends no line: it belongs to the \r

    def skip_to_last(self, lines: int) -> None:
        """Begin `lines` lines before the end of each log."""
        for log in log_files(self.run, self.selection):
            self.offsets[log.path] = offset_of_last(log.path, lines)

    def read(self, *, ended: bool = False) -> Iterator[tuple[LogFile, str]]:
        """Return new lines, without their ends; the unfinished last one too when the run has `ended`."""
        for log in log_files(self.run, self.selection):
            for line in self._lines(log.path):
                yield log, line.decode("utf-8", "replace")
            if ended and (rest := self.partial.pop(log.path, b"")):
                yield log, rest.decode("utf-8", "replace")

    def _lines(self, path: Path) -> Iterator[bytes]:
        rest = self.partial.pop(path, b"")
        for read in self._chunks(path):
            chunk = read.removeprefix(b"\n") if path in self.after_return else read
            self.after_return.discard(path)
            if chunk.endswith(b"\r"):
                self.after_return.add(path)
            *lines, rest = _LINE_END.split(rest + chunk)
            yield from lines
            if len(rest) > MAX_LINE:
                yield rest
                rest = b""
        if rest:
            self.partial[path] = rest

    def _chunks(self, path: Path) -> Iterator[bytes]:
        """What is new in a log, and before it the rest of the file that was rotated away meanwhile."""
        with open(path, "rb") as file:
            inode, known = os.fstat(file.fileno()).st_ino, self.inodes.get(path)
            offset, older = self.offsets.get(path, 0), path.with_name(f"{path.name}.1")
            if offset == 0 if known is None else known != inode:
                with contextlib.suppress(FileNotFoundError), open(older, "rb") as rotated:
                    rotated.seek(offset)
                    yield from iter(lambda: rotated.read(CHUNK), b"")
                offset = 0
            file.seek(offset)
            yield from iter(lambda: file.read(CHUNK), b"")
            self.inodes[path], self.offsets[path] = inode, file.tell()


def offset_of_last(path: Path, lines: int) -> int:
    """Return the offset at which the last `lines` lines of a file begin; reads it from its end."""
    with open(path, "rb") as file:
        end = position = file.seek(0, os.SEEK_END)
        chunks: list[bytes] = []
        ends = 0  # may count the two halves of a \r\n, so one is read more than needed, never less
        while position > 0 and ends <= lines + len(chunks):
            step = min(CHUNK, position)
            position -= step
            file.seek(position)
            chunks.append(file.read(step))
            ends += len(_LINE_END.findall(chunks[-1]))
    data = b"".join(reversed(chunks))
    pieces = [match.end() for match in _LINE_END.finditer(data)]
    starts = [0, *pieces] if not pieces or pieces[-1] < len(data) else [0, *pieces[:-1]]
    first = starts[-lines] if 0 < lines <= len(starts) else (len(data) if lines == 0 else 0)
    return end - len(data) + first


def beat_of(run: RunDir, attempt: int, rank: int = 0) -> dict[str, Any] | None:
    """Return the last beat of a rank: step, total, phase, loss, rate, eta; None when it has written none."""
    for path in run.path.glob(f"nodes/{'*' if rank else 0}/attempt_{attempt}/beat_{rank}"):
        try:
            data = parse_json(path.read_bytes())
        except (OSError, ValueError):  # caught in the middle of a write: the next look finds it whole
            return None
        return data if isinstance(data, dict) else None
    return None


def result_of(run: RunDir) -> dict[str, Any] | None:
    """Return what the program itself reported as its result (accuracy, data, ...); None when that is no JSON object."""
    try:
        return run.read("result.json")
    except StoreError:  # the program's own file: how it was written is no reason to refuse a look at the run
        return None


def age(moment: float | None) -> float | None:
    """Return seconds since a moment of the wall clock."""
    return None if moment is None else max(0.0, time.time() - moment)

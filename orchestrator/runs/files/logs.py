"""Reads a run's logs, heartbeats and result from its folder, even while they are being written."""

from __future__ import annotations

import contextlib
import os
import re
import time
from codecs import IncrementalDecoder, getincrementaldecoder
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from orchestrator.errors import StoreError
from orchestrator.protocol import reading
from orchestrator.protocol.events import Go, of, read_events
from orchestrator.protocol.frozen import Value
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.terminal_lines import TerminalLines
from orchestrator.runs.files.file_cache import FileCache
from orchestrator.runs.files.written_metrics import newest_metrics
from orchestrator.runs.store import RunDir, read_lines

if TYPE_CHECKING:
    from orchestrator.runs.files.log_filter import LineFilter

CHUNK = 1 << 18
MOST_TAIL = 16 << 20  # bytes at a log's end in which its last lines are searched
MOST_BEAT = 1 << 16
LAST_BYTES = 1 << 15  # bytes at a log's end in which its last line is searched
NO_RANK = -1  # the rank of a launcher's log
# Matches lines of torch and glog, [W1122 14:40:00.5 socket.cpp:12] ..., NCCL's information, and Python's warnings.
_NOISE = re.compile(
    r"(\[rank\d+\]: ?)?(\[[IW]\d{4}|\[[IW] [\w./]+\.(cpp|cc|cu|h):\d+\]|[IW]\d{4} \d\d:\d\d:)"
    r"|\S+:\d+:\d+ \[\d+\] NCCL INFO"
    r"|\S+\.py:\d+: \w*Warning: |  warnings\.warn\("
)


class LogFile(Value):
    """The log of one rank in one attempt. With rank NO_RANK, it is the log of a node's launcher in all attempts."""

    attempt: int
    rank: int
    node: int
    path: Path

    def opened(self, suffix: str = "") -> BinaryIO:
        """Open the log or, with the suffix `.1`, the older part that was split off by a rotation.

        Raises FileNotFoundError if it is missing, and StoreError if it can't be read.
        """
        path = f"{self.path}{suffix}"
        try:
            return reading.opened(path, self.path.parents[3])  # RUN/nodes/0/attempt_0/rank_0.log
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(f"{path} can't be read: {error.strerror}") from error


class Selection(Value):
    """The ranks whose logs are read; rank 0 by default."""

    rank: int | None = None
    node: int | None = None
    everything: bool = False
    launchers: bool = False  # the launchers' own logs instead of the ranks'

    @property
    def takes_several(self) -> bool:
        """Return whether the selection may contain the logs of more than one rank."""
        return self.everything or self.node is not None

    @property
    def ranks(self) -> list[int] | None:
        """Return the selected ranks, or None for all."""
        if self.everything or (self.node is not None and self.rank is None):
            return None
        return [self.rank or 0]

    def takes(self, log: LogFile) -> bool:
        """Return whether this log is selected."""
        if self.everything:
            return True
        if self.node is not None:
            return log.node == self.node and self.rank in (None, log.rank)
        return log.rank == (self.rank or 0)


def log_files(run: RunDir, selection: Selection) -> list[LogFile]:
    """Return the selected logs that exist, sorted by attempt and rank."""
    if selection.launchers:
        return _launcher_logs(run, selection)
    found = (
        LogFile(attempt, rank, node, Path(path))
        for node, of_node in _numbered(f"{run.path}/nodes")
        for attempt, of_attempt in _numbered(of_node, "attempt_")
        for rank, path in _numbered(of_attempt, "rank_", ".log")
    )
    return sorted(filter(selection.takes, found), key=lambda log: (log.attempt, log.rank))


def launchers_instead(run: RunDir, selection: Selection) -> Selection | None:
    """Return a selection of the launchers' logs. Return None if any rank of the run has a log, or if no launcher has
    one.

    If a node was selected, only its launcher's log is selected. A run has only launchers' logs if its setup lines, its
    interpreter or its imports failed.
    """
    instead = Selection(node=selection.node, launchers=True)
    found = log_files(run, instead)
    if not found or log_files(run, Selection(everything=True)):
        return None
    return replace(instead, everything=len(found) > 1 and selection.node is None)


def _launcher_logs(run: RunDir, selection: Selection) -> list[LogFile]:
    """Return the launchers' logs that are not empty, sorted by node."""
    found = []
    for path in run.path.glob("nodes/*/launcher.log"):
        node = path.parent.name
        if node.isdecimal() and selection.node in (None, int(node)) and path.stat().st_size:
            found.append(LogFile(0, NO_RANK, int(node), path))
    return sorted(found, key=lambda log: log.node)


def nodes_with(run: RunDir, selection: Selection, known: FileCache) -> set[int] | None:
    """Return the nodes that may have a selected log, or None for all nodes.

    Node 0's events `go` show on which nodes a rank was started. The set is empty before the first such event, because
    no rank has a log yet.
    """
    from orchestrator.protocol.ranks import bind

    if selection.everything:
        return None
    if selection.node is not None:
        return {selection.node}
    path, rank, found = f"{run.node(0)}/events.jsonl", selection.rank or 0, set[int]()
    lines = (each for each in read_lines(path, run.path) if each.get("kind") == Go.kind)
    for go in known.of_file(path, lambda: of(read_events(lines), Go)):
        if not go.nproc:  # the field is damaged
            return None
        found |= {each.node_rank for each in bind(list(go.nproc)) if 0 <= rank - each.rank_offset < each.nproc}
    return found


@dataclass
class _Reading:
    """The position up to which one log was read, and the text that was read but not returned yet."""

    offset: int = 0
    inode: int | None = None
    decoder: IncrementalDecoder = field(default_factory=lambda: getincrementaldecoder("utf-8")("replace"))
    lines: TerminalLines = field(default_factory=TerminalLines)


@dataclass
class Tail:
    """Reads the lines that were appended to the selected logs since the previous call."""

    run: RunDir
    selection: Selection
    wanted: LineFilter | None = None  # selects lines
    last: int | None = None  # the number of wanted lines that the first read returns
    readings: dict[Path, _Reading] = field(default_factory=dict)

    def skip_to_last(self, lines: int) -> None:
        """Skip to the last `lines` lines of each log. If a filter selects lines, only the selected lines count."""
        if self.wanted is not None:
            self.last = lines
            return
        for log in log_files(self.run, self.selection):
            self.readings[log.path] = _reading_of_last(log, lines)

    def read(self, *, ended: bool = False) -> Iterator[tuple[LogFile, str]]:
        """Yield the new lines, without line ends.

        A progress bar is one line, and is yielded when it can't change any more. An unfinished last line is yielded
        only if the run has `ended` or a log of a later attempt exists.
        """
        logs = log_files(self.run, self.selection)
        for log in logs:
            lines = self._lines(log, is_whole=ended or log.attempt < logs[-1].attempt)
            if (wanted := self.wanted) is not None:
                lines = (line for line in lines if wanted.takes(log, line)) if wanted.may_take(log) else iter(())
            for line in lines if self.last is None else deque(lines, self.last):
                yield log, line
        self.last = None

    def _lines(self, log: LogFile, *, is_whole: bool) -> Iterator[str]:
        known = self._reading(log)
        for chunk in _chunks(log, known):
            yield from known.lines.feed(known.decoder.decode(chunk))
        if is_whole:
            yield from known.lines.feed(known.decoder.decode(b"", final=True))
            yield from known.lines.end()

    def read_bytes(self) -> Iterator[tuple[LogFile, bytes]]:
        """Yield the new bytes as the programs wrote them."""
        for log in log_files(self.run, self.selection):
            for chunk in _chunks(log, self._reading(log)):
                yield log, chunk

    def open_line(self) -> tuple[LogFile, str] | None:
        """Return the unfinished line, usually a progress bar, of the first rank that has one. Return None if a
        filter selects lines.
        """
        if self.wanted is not None:
            return None
        for log in log_files(self.run, self.selection):
            if line := self._reading(log).lines.open_line:
                return log, line
        return None

    def _reading(self, log: LogFile) -> _Reading:
        return self.readings.setdefault(log.path, _Reading())


def _chunks(log: LogFile, so_far: _Reading) -> Iterator[bytes]:
    """Yield the new bytes of a log. If the log was rotated since the last read, the rest of the rotated file comes
    first.
    """
    try:
        file = log.opened()
    except FileNotFoundError:  # a rotation is between its two renames, or the run was removed
        return
    with file:
        inode, known = os.fstat(file.fileno()).st_ino, so_far.inode
        if so_far.offset == 0 if known is None else known != inode:
            with contextlib.suppress(FileNotFoundError), log.opened(".1") as rotated:
                if os.fstat(rotated.fileno()).st_ino != inode:  # if equal, the log was rotated after `opened`
                    rotated.seek(so_far.offset)
                    yield from iter(lambda: rotated.read(CHUNK), b"")
            so_far.offset = 0
        file.seek(so_far.offset)
        yield from iter(lambda: file.read(CHUNK), b"")
        so_far.inode, so_far.offset = inode, file.tell()


def _reading_of_last(log: LogFile, lines: int) -> _Reading:
    """Return a reading that starts at the last `lines` lines of a log. Some of these lines may be in the log's
    rotated part.
    """
    with contextlib.suppress(FileNotFoundError), log.opened() as file:
        offset, left = _last_lines(file, lines)
        if offset > 0 or left <= 0:
            return _Reading(offset, os.fstat(file.fileno()).st_ino)
        with log.opened(".1") as older:
            return _Reading(_last_lines(older, left)[0], os.fstat(older.fileno()).st_ino)
    return _Reading()


def offset_of_last(log: LogFile, lines: int) -> int:
    """Return the offset at which the last `lines` lines of a log begin, at most MOST_TAIL bytes before its end."""
    with log.opened() as file:
        return _last_lines(file, lines)[0]


def _last_lines(file: BinaryIO, lines: int) -> tuple[int, int]:
    """Return (offset at which the last `lines` lines of a file begin, number of missing lines if the file has fewer).
    The file is read from its end.
    """
    position = end = file.seek(0, os.SEEK_END)
    left = lines
    if lines == 0:
        return end, 0
    while position > max(0, end - MOST_TAIL):
        step = min(CHUNK, position)
        position -= step
        file.seek(position)
        chunk = file.read(step)
        found = len(chunk) - (position + step == end)  # the newline at the end starts no further line
        while (found := chunk.rfind(b"\n", 0, found)) >= 0:
            left -= 1
            if left == 0:
                return position + found + 1, 0
    return position, left - (end > 0)


def last_line(run: RunDir, attempt: int) -> str:
    """Return the last line or progress bar that rank 0's program printed in an attempt; "" if it printed nothing.

    Warnings from libraries are skipped.
    """
    path = f"{run.path}/nodes/0/attempt_{attempt}/rank_0.log"
    try:
        text = reading.read_part(path, -LAST_BYTES, LAST_BYTES, run.path).decode("utf-8", "replace")
    except OSError:
        return ""
    reader = TerminalLines()
    lines = [*reader.feed(text), reader.open_line]
    return next((line for line in reversed(lines) if line.strip() and not _NOISE.match(line)), "")


def beat_of(run: RunDir, attempt: int) -> dict[str, Any] | None:
    """Return rank 0's last heartbeat: step, total, phase, loss, rate, eta. Return None if there is none.

    If rank 0 writes no heartbeats, the step and a field `metrics` with the newest values come from the program's own
    metric files.
    """
    try:
        data = reading.read_json(run.path / f"nodes/0/attempt_{attempt}/beat_0", MOST_BEAT, run.path)
    except FileNotFoundError:
        return newest_metrics(run, attempt)
    except (OSError, ValueError):  # the file is being written, and the next call can read it
        return None
    return data if isinstance(data, dict) else None


def beats_of(run: RunDir, attempt: int) -> dict[int, dict[str, Any]]:
    """Return the last heartbeat of each rank in an attempt. Ranks without heartbeats are left out, except rank 0: its
    step and metrics then come from the program's own metric files.
    """
    found: dict[int, dict[str, Any]] = {}
    for _, node in _numbered(f"{run.path}/nodes"):
        with contextlib.suppress(OSError):
            for name, text in reading.read_each(f"{node}/attempt_{attempt}", _is_beat, MOST_BEAT, run.path):
                with contextlib.suppress(ValueError):
                    data = parse_json(text)
                    if isinstance(data, dict):
                        found[int(name[5:])] = data
    if 0 not in found and (of_metrics := newest_metrics(run, attempt)) is not None:
        found[0] = of_metrics
    return found


def _is_beat(name: str) -> bool:
    return name.startswith("beat_") and name[5:].isdecimal()


def _numbered(folder: str, prefix: str = "", suffix: str = "") -> Iterator[tuple[int, str]]:
    """Yield (number, path) of each entry of a folder whose name is `prefix`, a number, and `suffix`. The paths are
    strings, because creating a thousand Path objects is slow.
    """
    for name in reading.names_in(folder):
        number = name.removeprefix(prefix).removesuffix(suffix)
        if number.isdecimal() and name == f"{prefix}{number}{suffix}":
            yield int(number), f"{folder}/{name}"


def result_of(run: RunDir) -> dict[str, Any] | None:
    """Return the result that the program reported (accuracy, data, ...). Return None if there is none, or if it is
    not a JSON object.
    """
    try:
        return run.read("result.json")
    except StoreError:  # the program wrote this file, so damage in it must not make the run unreadable
        return None


def age(moment: float | None) -> float | None:
    """Return the number of seconds since a wall-clock time."""
    return None if moment is None else max(0.0, time.time() - moment)

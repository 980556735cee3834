"""On node 0, reads the metrics that the program writes to its own files. The reading runs in a thread beside the
agent's event loop, and uses at most 5 % of a core.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from bisect import bisect
from functools import partial
from typing import Callable

from orchestrator.node.agent.metrics.finding import MOST_FILES, Finder, Reader, reader_of
from orchestrator.node.agent.metrics.following import IsOver, UnreadableError
from orchestrator.node.agent.metrics.kept import KeptMetrics
from orchestrator.node.agent.metrics.series import RunSeries
from orchestrator.node.agent.sampling.loop import Started
from orchestrator.node.system.threads import in_thread
from orchestrator.protocol.events import Event, MetricsUnread
from orchestrator.protocol.layout import node_folder, read_metrics_file
from orchestrator.protocol.task import NodeTask

# The minimum pause between two reads. A read that took more than 0.1 s of CPU time is followed by a longer pause.
LOOK_SECONDS = 2.0
SHARE = 20  # after a read that took one second of CPU time, the pause is this many seconds
MOST_OF_A_LOOK = 0.1  # seconds of CPU time for one read
MOST_AT_THE_END = 2.0  # seconds of CPU time for the last read, after the ranks have ended
LONGEST_READ = 4.0  # seconds for one read, which a busy machine or a slow disk may prolong
LONGEST_AT_THE_END = 10.0  # after this many seconds, the end of the agent no longer waits for a disk that hangs

_Stamp = tuple[int, int, int]


class _File:
    """A file of metrics. `stamp` is the file's size and time when it was last read to its end."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.format = type(reader).__name__
        self.stamp: _Stamp | None = None
        self.is_left = False  # True if the last read ended before the end of this file

    def new_stamp(self) -> _Stamp | None:
        """Return the file's inode, size and time if they have changed since the last read; None if nothing has changed
        or the file is missing.
        """
        try:
            info = os.lstat(self.reader.followed.path)
        except OSError:
            return None
        stamp = (info.st_ino, info.st_size, info.st_mtime_ns)
        return None if stamp == self.stamp else stamp


class WrittenMetrics:
    """Collects the metrics that the program writes to its own files, and writes them to one file of the run.

    If two series have a metric of the same name, the metric that was read first keeps the name. The other metric's name
    gets its folder's name as a prefix. If a file of another format repeats a metric, the repeated values are ignored.
    """

    def __init__(self, task: NodeTask, started: Callable[[], Started], record: Callable[[Event], None]) -> None:
        self.task, self.started, self.record = task, started, record
        self.lock = threading.Lock()
        self.has_ended = False
        self.finder: Finder | None = None
        self.kept: KeptMetrics | None = None
        self.files: dict[str, _File] = {}
        self.series = RunSeries(task.attempt)
        self.pids: dict[int, int] = {}
        self.next_search = 0.0
        self.unread: set[str] = set()
        self.turn = ""  # the file in which the last read stopped
        self.loop: asyncio.AbstractEventLoop | None = None  # the event loop in whose thread events are recorded

    async def run(self) -> None:
        """Read new points at intervals until the agent ends."""
        self.loop = asyncio.get_running_loop()
        while not self.has_ended:
            used = await in_thread(self.look, MOST_OF_A_LOOK)
            await asyncio.sleep(max(LOOK_SECONDS, SHARE * used))

    async def end(self) -> None:
        """Read new points a last time after the program has ended. Do not wait longer than LONGEST_AT_THE_END, because
        a disk may hang.
        """
        self.has_ended = True
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(in_thread(self.look, MOST_AT_THE_END, True), LONGEST_AT_THE_END)

    def note(self, started: Started) -> None:
        """Store the process ids of the ranks, because the names of TensorBoard's event files contain them."""
        self.pids.update({pid: rank for rank, pid in started.pids.items()})

    def look(self, most: float, is_last: bool = False) -> float:
        """Read new points for at most `most` seconds of CPU time. Return the CPU seconds that were used."""
        begun, latest = time.thread_time(), time.monotonic() + LONGEST_READ

        def is_over() -> bool:
            return time.thread_time() >= begun + most or time.monotonic() >= latest

        with self.lock:
            try:
                self._look(is_over, is_last)
            except Exception as error:  # noqa: BLE001 (no file of a program may end the training)
                self._complain(self.task.run_dir, error)
        return time.thread_time() - begun

    def _look(self, is_over: IsOver, is_last: bool) -> None:
        if self.finder is None:
            self.finder = Finder(self.task)
        if self.kept is None:
            path = read_metrics_file(node_folder(self.task.run_dir, self.task.node_rank))
            self.kept = KeptMetrics(path, self.series.learn)
        if is_last or time.monotonic() >= self.next_search:
            self._search(self.finder)
        paths = sorted(self.files)
        at = bisect(paths, self.turn)  # start after the last file, so that a large file does not starve the others
        for path in [*paths[at:], *paths[:at]]:
            self._read(self.files[path], self.kept, is_over)
            if self.files[path].is_left:
                self.turn = path
                break
        for line in self.series.records():
            self.kept.add_line(line)
        if is_last:
            self.kept.end()
            self._name_unread()
        else:
            self.kept.flush()

    def _search(self, finder: Finder) -> None:
        begun, used = time.monotonic(), time.thread_time()
        for found in finder.find(self.pids):
            if found.path not in self.files and len(self.files) < MOST_FILES:
                reader = reader_of(found)
                assert reader is not None
                self.files[found.path] = _File(reader)
        used = time.thread_time() - used
        self.next_search = time.monotonic() + max(LOOK_SECONDS, 2 * SHARE * used, 4 * (time.monotonic() - begun))

    def _name_unread(self) -> None:
        for path, file in self.files.items():
            if file.is_left and path not in self.unread:
                self._complain(path, UnreadableError("the run ended before the whole file was read"))

    def _read(self, file: _File, kept: KeptMetrics, is_over: IsOver) -> None:
        stamp = file.new_stamp()
        if stamp is None:
            return
        path, below = file.reader.followed.path, file.reader.followed.below
        file.is_left = False
        started = self.started()  # asked after the file's time, so that no attempt has begun in between
        self.series.begin(started.attempt)
        is_now = stamp[2] >= started.since * 1e9

        def is_over_now() -> bool:
            file.is_left = is_over()
            return file.is_left

        try:
            for point in file.reader.read(is_over_now):
                series, attempt = self.series.taken(file.format, path, below, point.values, is_now)
                kept.add(point._replace(values=self.series.renamed(path, series, point.values)), attempt)
        except FileNotFoundError:
            return  # the file was removed meanwhile
        except (UnreadableError, OSError) as error:
            self._complain(path, error)
        if not file.is_left:
            file.stamp = stamp

    def _complain(self, path: str, error: Exception) -> None:
        """Record that a file can't be read, or that no metrics can be written. For each path, only the first error is
        recorded.
        """
        if path not in self.unread:
            self.unread.add(path)
            reason = error.strerror if isinstance(error, OSError) else None
            reason = reason or str(error) or type(error).__name__
            record = partial(self.record, MetricsUnread(path, reason))
            if self.loop is None:
                record()
            else:  # events are recorded only in the thread of the agent's loop
                with contextlib.suppress(RuntimeError):  # the agent has ended
                    self.loop.call_soon_threadsafe(record)

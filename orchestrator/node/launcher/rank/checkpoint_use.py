"""Notes in rank 0's process that the program has read the checkpoint from which it was to resume.

An audit hook sees each file that Python code opens. A program may also open a checkpoint to list or verify it, so a
file counts only if the process has read as many bytes as the file has, or has mapped the file. A thread checks this
while the file is open. Files that C++ or Rust code opens are not seen, except by safetensors' `load_file`.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import functools
import os
import sys
import time
from types import ModuleType
from typing import Any, NamedTuple

from orchestrator.node.launcher.rank.after_import import after_import
from orchestrator.protocol.checkpoints.weight_files import names_weights

ALMOST = 0.9  # the share of a file's bytes that counts as the whole file, because a reader may skip padding
PAUSES = (0.002, 0.25)  # the first and the longest pause between two checks, in seconds
MOST_OPENING = 2.0  # after so many seconds, a file that is not open was closed again, or could not be opened


def note_use(checkpoint: str, marker: str) -> None:
    """Create the file `marker` as soon as this process has read a weight file of the checkpoint."""
    watch = _Watch(checkpoint, marker)
    sys.addaudithook(watch.hear)
    atexit.register(watch.look)
    after_import("safetensors.torch", watch.watch_safetensors)


class _Opened(NamedTuple):
    """A file that the program opens. `read_before` is the number of bytes that the process had read before."""

    path: str
    size: int
    file: tuple[int, int]
    read_before: int
    since: float
    thread: int


class _Watch:
    """The checkpoint, and the file of the checkpoint that the program has opened last."""

    def __init__(self, checkpoint: str, marker: str) -> None:
        self.checkpoint, self.marker = os.path.realpath(checkpoint), marker
        self.name = os.path.basename(self.checkpoint)
        self.opened: _Opened | None = None
        self.is_known = False
        self.own = 0  # the number of bytes that this class has read itself
        self.lock = _thread.allocate_lock()
        self.checks = 0  # the thread that checks the opened file

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        """Handle an audit event. An `open` event comes before the file is opened."""
        if event != "open" or self.is_known or self.checks == _thread.get_ident():
            return
        try:
            self.look(before_another=True)
            path = args[0] if isinstance(args[0], str) else os.fsdecode(args[0])
            if self.name in path and not int(args[2] or 0) & (os.O_WRONLY | os.O_RDWR):
                self._begin(os.path.realpath(path))
        except (OSError, TypeError, ValueError, RuntimeError):
            return  # the program opens this file as it would without orch

    def _begin(self, path: str) -> None:
        is_inside = path.startswith(f"{self.checkpoint}/") and names_weights(os.path.basename(path))
        if self.is_known or (path != self.checkpoint and not is_inside):
            return
        info, is_followed = os.stat(path), self.opened is not None
        now, thread = time.monotonic(), _thread.get_ident()
        self.opened = _Opened(path, info.st_size, (info.st_dev, info.st_ino), self._bytes_read(), now, thread)
        if not is_followed:
            _thread.start_new_thread(self._follow, ())

    def _follow(self) -> None:
        pause = PAUSES[0]
        while self.opened is not None and not self.is_known:
            time.sleep(pause)  # the kernel sends no event when a process reads
            pause = min(2 * pause, PAUSES[1])
            self.look()

    def look(self, before_another: bool = False) -> None:
        """Create the marker if the opened file was read or mapped, and else forget the file if it is closed again.

        `before_another` is whether this thread is about to open another file.
        """
        opened = self.opened
        if opened is None or not self.lock.acquire(False):
            return
        self.checks = _thread.get_ident()
        try:
            if self._bytes_read() - opened.read_before >= ALMOST * opened.size or self._is_mapped(opened):
                self._note()
            elif not _is_open(opened):
                is_over = before_another and opened.thread == self.checks
                if is_over or time.monotonic() - opened.since > MOST_OPENING:
                    self.opened = None
        except OSError:
            self.opened = None  # this system does not tell what a process reads
        finally:
            self.checks = 0
            self.lock.release()

    def watch_safetensors(self, module: ModuleType) -> None:
        """Let safetensors' `load_file`, which opens the file in Rust, note that it has loaded the checkpoint."""
        load_file = module.load_file

        @functools.wraps(load_file)
        def load(filename: Any, *args: Any, **kwargs: Any) -> Any:
            found = load_file(filename, *args, **kwargs)
            with contextlib.suppress(OSError, TypeError, ValueError):
                path = os.path.realpath(os.fsdecode(filename))
                if path == self.checkpoint or path.startswith(f"{self.checkpoint}/"):
                    self._note()
            return found

        vars(module)["load_file"] = load

    def _note(self) -> None:
        self.is_known, self.opened = True, None
        with contextlib.suppress(OSError):  # the folder was removed, or another process has created the file
            os.close(os.open(self.marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))

    def _bytes_read(self) -> int:
        """Return how many bytes this process has read, without the bytes that this class has read."""
        found = self._own_file("/proc/self/io")
        return int(found.split(b"rchar:")[1].split()[0]) - self.own + len(found)

    def _is_mapped(self, opened: _Opened) -> bool:
        return os.fsencode(opened.path) in self._own_file("/proc/self/maps")

    def _own_file(self, path: str) -> bytes:
        parts = []
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while part := os.read(file, 1 << 16):
                parts.append(part)
                self.own += len(part)
        finally:
            os.close(file)
        return b"".join(parts)


def _is_open(opened: _Opened) -> bool:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor was closed meanwhile
            info = os.stat(f"/proc/self/fd/{name}")
            if (info.st_dev, info.st_ino) == opened.file:
                return True
    return False

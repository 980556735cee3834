"""A command at a terminal, and what is typed and read there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.patience import PATIENCE


@dataclass
class Terminal:
    """A terminal with a command on it; `text` is all that it has shown."""

    process: subprocess.Popen[bytes]
    descriptor: int
    text: str = ""

    def until(self, words: str) -> str:
        """Everything shown so far, once the words are in it."""
        end = time.monotonic() + PATIENCE
        while words not in self.text:
            assert self._read(end - time.monotonic()), f"'{words}' never came: {self.text}"
        return self.text

    def type(self, line: str) -> None:
        if line == "\x03":
            self._until_it_waits()
        os.write(self.descriptor, line.encode())

    def code(self) -> int:
        """The command's exit code, once it has ended and all it said has been read."""
        end, ended = time.monotonic() + PATIENCE, os.pidfd_open(self.process.pid)
        try:
            while ended not in select.select([self.descriptor, ended], [], [], max(0.0, end - time.monotonic()))[0]:
                assert self._read(0), f"it did not end: {self.text}"
        finally:
            os.close(ended)
        while select.select([self.descriptor], [], [], 0)[0] and self._read(0):
            continue
        return self.process.wait()

    def _until_it_waits(self) -> None:
        """Return once the command is in a system call: CPython misses a signal that comes just before one."""
        end = time.monotonic() + PATIENCE
        while Path(f"/proc/{self.process.pid}/syscall").read_text().startswith("running"):
            assert time.monotonic() < end, f"it never waits: {self.text}"
            time.sleep(0.01)

    def hang_up(self) -> None:
        """Close the window."""
        os.close(self.descriptor)
        self.descriptor = -1

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self.descriptor], [], [], max(0.0, seconds))
        assert ready, f"nothing more came: {self.text}"
        with contextlib.suppress(OSError):  # EIO: the other side has closed
            data = os.read(self.descriptor, 1 << 16)
            self.text += data.decode(errors="replace").replace("\r\n", "\n")
            return bool(data)
        return False


@contextmanager
def terminal(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path | None = None, columns: int = 80
) -> Iterator[Terminal]:
    """The command, started as the first of a terminal of its own; ended with the block."""
    mine, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    # The first of a session that opens a terminal has it as its own, with Ctrl-C and the hang-up.
    open_it = ["sh", "-c", 'exec <>"$0" >&0 2>&1; exec "$@"', os.ttyname(its)]
    process = subprocess.Popen([*open_it, *argv], env=env, cwd=cwd, start_new_session=True)
    here = Terminal(process, mine)
    try:
        yield here
    finally:
        os.close(its)
        if here.descriptor >= 0:
            os.close(here.descriptor)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)

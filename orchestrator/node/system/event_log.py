"""This node's own record: one JSON object a line, appended by the agent alone."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
import time
from typing import Any

from orchestrator.protocol.files import open_own
from orchestrator.protocol.reading import opened

PIECE = 1 << 20
RESERVE_BYTES = 1 << 17


class EventLog:
    """Appends events; a full disk is reported once on stderr, and ends nothing.

    Where the folder is removed meanwhile, it is made again, with the first event, which says whose the others are.
    """

    def __init__(self, path: str, node_rank: int) -> None:
        self.path, self.node_rank = path, node_rank
        self.sequence, self.torn = _lines_in(path)
        self.complained = False
        self.first = b""
        self.reserve = f"{path}.reserve"
        with contextlib.suppress(OSError), open(open_own(self.reserve, os.O_WRONLY | os.O_CREAT), "wb") as file:
            os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)

    def write(self, kind: str, **values: Any) -> None:
        """Append one event; `mono` orders events of one host, `time` is for people."""
        event = {
            "kind": kind,
            "seq": self.sequence,
            "time": round(time.time(), 3),
            "mono": round(time.monotonic(), 3),
            "node": self.node_rank,
            **values,
        }
        self.sequence += 1
        line = (json.dumps(event) + "\n").encode()
        if self.torn:  # what a full disk cut off must not take this one with it
            line = b"\n" + line
        try:
            descriptor = open_own(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                written = os.write(descriptor, line)
                self.torn = written < len(line) if written else self.torn
            finally:
                os.close(descriptor)
            self.first = self.first or line.lstrip()
        except OSError as error:
            if error.errno == errno.ENOENT and self._make_folder():
                self.write(kind, **values)
            elif error.errno == errno.ENOSPC and self._give_reserve_back():
                self.write("disk_full", path=self.path)
                self.write(kind, **values)
            elif not self.complained:
                print(f"orch: {socket.gethostname()}: can't write {self.path}: {error}", file=sys.stderr, flush=True)
                self.complained = True

    def _make_folder(self) -> bool:
        """Make the folder that was removed, and begin the record in it anew; False where that can't be done."""
        folder = os.path.dirname(self.path)
        if os.path.isdir(folder):
            return False
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            with open(open_own(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "wb") as file:
                file.write(self.first)
        except OSError:
            return False
        return True

    def _give_reserve_back(self) -> bool:
        """Free what was kept for the last words on a full disk; False when it has been given back before."""
        try:
            os.unlink(self.reserve)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Give the reserve back; events may still be written."""
        self._give_reserve_back()


def _lines_in(path: str) -> tuple[int, bool]:
    """Return (how many lines, whether the last one lacks its end)."""
    try:
        with opened(path) as file:
            count, last = 0, b""
            while data := file.read(PIECE):
                count, last = count + data.count(b"\n"), data[-1:]
    except OSError:
        return 0, False
    return count, last not in (b"", b"\n")

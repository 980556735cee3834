"""A node's record of events, with one JSON object per line. Only the node's agent appends to it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
import time

from orchestrator.protocol.events import DiskFull, Event, read_events
from orchestrator.protocol.files import append
from orchestrator.protocol.json_text import objects_in
from orchestrator.protocol.reading import MOST_LINES, open_own, opened, read_regular
from orchestrator.protocol.typed import to_json

MOST_KEPT = 1 << 20  # bytes of the record that are kept in memory
RESERVE_BYTES = 1 << 17  # bytes of disk space that are reserved for the last events


class EventLog:
    """Appends events to a node's record. If the disk is full, this is reported once on stderr, and nothing is raised.

    If the record's folder is removed, it is created again with all earlier events, so that copies of the record stay
    valid. For this purpose, events are also kept in memory. If the kept events exceed MOST_KEPT bytes, only the first
    event, which identifies the run, and the newest events are kept.
    """

    def __init__(self, path: str, node_rank: int) -> None:
        self.path, self.node_rank = path, node_rank
        self.sequence, self.kept = _written(path)
        self.torn = self.kept[-1:] not in (b"", b"\n")
        self.complained = False
        self.reserve = f"{path}.reserve"
        with contextlib.suppress(OSError), open(open_own(self.reserve, os.O_WRONLY | os.O_CREAT), "wb") as file:
            os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)

    def write(self, event: Event) -> None:
        """Append an event with its sequence number, the time and the node's number."""
        stamped = {
            "kind": event.kind,
            "seq": self.sequence,
            "time": round(time.time(), 3),
            "mono": round(time.monotonic(), 3),
            "node": self.node_rank,
            **to_json(event, stamps=False, whole=True),
        }
        self.sequence += 1
        line = (json.dumps(stamped) + "\n").encode()
        if self.torn:  # a full disk has truncated the last line, and this line must not continue it
            line = b"\n" + line
        try:
            written = append(self.path, line)
            self.torn = written < len(line) if written else self.torn
            self._keep(line[:written])
            if written < len(line):  # the disk is full, which the next write would report
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if error.errno == errno.ENOENT and self._make_folder():
                self.write(event)
            elif error.errno in (errno.ENOSPC, errno.EDQUOT) and self._give_reserve_back():
                self.write(DiskFull(self.path))
                self.write(event)
            elif not self.complained:
                print(f"orch: {socket.gethostname()}: can't write {self.path}: {error}", file=sys.stderr, flush=True)
                self.complained = True

    def _keep(self, line: bytes) -> None:
        self.kept += line
        if len(self.kept) > MOST_KEPT:
            first, middle = self.kept.index(b"\n") + 1, self.kept.index(b"\n", len(self.kept) // 2) + 1
            self.kept = self.kept[:first] + self.kept[middle:]

    def _make_folder(self) -> bool:
        """Create the record's folder again after it was removed, with the events so far. Return False if the folder
        exists or can't be created.
        """
        folder = os.path.dirname(self.path)
        if os.path.isdir(folder):
            return False
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            with open(open_own(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "wb") as file:
                file.write(self.kept)
        except OSError:
            return False
        return True

    def _give_reserve_back(self) -> bool:
        """Free the reserved disk space. Return False if it has been freed before."""
        try:
            os.unlink(self.reserve)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Free the reserved disk space. Events can still be written afterwards."""
        self._give_reserve_back()


def events_in(path: str) -> list[Event]:
    """Return the events of a node's record (RUN/nodes/N/events.jsonl). Skip lines that a crash or a full disk has
    truncated.

    Raises OSError if the record is missing or can't be read.
    """
    return read_events(objects_in(read_regular(path, MOST_LINES, path.rpartition("/nodes/")[0]).splitlines()))


def _written(path: str) -> tuple[int, bytes]:
    """Return the number of lines in the record that earlier agents of this node have written, and the record's last
    bytes.
    """
    count, last = 0, b""
    with contextlib.suppress(OSError), opened(path) as file:
        while data := file.read(MOST_KEPT):
            count, last = count + data.count(b"\n"), (last + data)[-MOST_KEPT:]
    return count, last

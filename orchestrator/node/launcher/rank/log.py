"""Writes a rank's output to disk. If the output exceeds a limit, only its newest part is kept."""

from __future__ import annotations

import contextlib
import os

from orchestrator.protocol.reading import open_own

MIN_LIMIT = 1 << 16
LINE_ENDS = b"\n\r"
LONG_LINE = 1 << 12  # the log exceeds its limit by up to this many bytes to end at the end of a line


class RankLog:
    """An append-only log of at most two files of `limit` bytes each: PATH, and PATH.1 with the older bytes."""

    def __init__(self, path: str, limit: int) -> None:
        self.path, self.limit = path, max(limit, MIN_LIMIT)
        self.descriptor = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.size = os.fstat(self.descriptor).st_size
        self.output = self.size  # bytes in PATH that the rank wrote, without orch's notes
        self.older = 0  # bytes in PATH.1 that the rank wrote, without orch's notes
        self.dropped = 0  # bytes that were deleted by rotation
        self.lost = 0  # bytes that could not be written to the disk
        self.is_in_line = False  # whether the last line on disk is unfinished

    def write(self, data: bytes) -> OSError | None:
        """Append the data. If it can't be written, return the error, because a full disk must not end the training.

        A log is rotated at the end of a line, so it may exceed its limit by less than one write. If its last line is
        very long, the log is rotated within the line.
        """
        room = max(0, self.limit - self.size)
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1 if len(data) > room else 0
        if len(data) <= room + (0 if end else LONG_LINE):
            return self._append(data)
        error = self._append(data[: end or room]) or self._rotate()
        return self._append(data[end or room :]) or error

    def _append(self, data: bytes) -> OSError | None:
        view = memoryview(data)
        try:
            while view:
                written = os.write(self.descriptor, view)
                self.is_in_line = view[written - 1] not in LINE_ENDS
                self.size += written
                self.output += written
                view = view[written:]
        except OSError as error:
            self.lost += len(view)
            return error
        return None

    def _rotate(self) -> OSError | None:
        """Continue in a new file, whose first line names the file with the older bytes. If this fails, return the
        error.
        """
        try:
            fresh = open_own(f"{self.path}.new", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        except OSError as error:
            return error
        try:
            os.replace(self.path, f"{self.path}.1")
            os.replace(f"{self.path}.new", self.path)
        except OSError as error:
            os.close(fresh)
            return error
        if self.is_in_line:  # readers join both files, and the note must not continue the program's line
            with contextlib.suppress(OSError):
                os.write(self.descriptor, b"\n")
        os.dup2(fresh, self.descriptor, inheritable=False)
        os.close(fresh)
        self.dropped, self.older, self.output, self.size = self.dropped + self.older, self.output, 0, 0
        self.is_in_line = False
        name = os.path.basename(self.path)
        before = f"the {self.older} bytes before this are in {name}.1"
        gone = f", and {self.dropped} bytes before those are gone" if self.dropped else ""
        note = f"[orch: {name} reached its limit of {self.limit} bytes; {before}{gone}]\n".encode()
        with contextlib.suppress(OSError):  # an error of this disk is reported with the rank's own bytes
            self.size = os.write(self.descriptor, note)
        return None

    def close(self) -> None:
        """Close the log. A forked child calls this too, because only the launcher writes to the log."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

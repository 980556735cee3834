"""One rank's output on disk: every byte until the stated limit, then one rotation behind it."""

from __future__ import annotations

import os

MIN_LIMIT = 1 << 16


class RankLog:
    """An append-only log that keeps at most two files of `limit` bytes: PATH and, before it, PATH.1."""

    def __init__(self, path: str, limit: int) -> None:
        self.path, self.limit = path, max(limit, MIN_LIMIT)
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.size = os.fstat(self.descriptor).st_size
        self.lost = 0  # bytes that the disk did not take

    def write(self, data: bytes) -> OSError | None:
        """Append; the error of a disk that doesn't take it, which must not end the training.

        A log is rotated after the end of a line, so that it may grow past its limit by less than one write.
        """
        if self.size + len(data) > self.limit and (end := data.rfind(b"\n") + 1):
            problem = self._append(data[:end])
            return problem or self._rotate() or self._append(data[end:])
        return self._append(data)

    def _append(self, data: bytes) -> OSError | None:
        view = memoryview(data)
        try:
            while view:
                written = os.write(self.descriptor, view)
                self.size += written
                view = view[written:]
        except OSError as error:
            self.lost += len(view)
            return error
        return None

    def _rotate(self) -> OSError | None:
        try:
            os.replace(self.path, f"{self.path}.1")
            fresh = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            return error
        os.dup2(fresh, self.descriptor, inheritable=False)
        os.close(fresh)
        name = os.path.basename(self.path)
        note = f"[orch: {name} reached its limit of {self.limit} bytes; what came before is in {name}.1]\n".encode()
        self.size = 0
        return self._append(note)

    def close(self) -> None:
        """Close it; also in a forked child, which has no business with it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

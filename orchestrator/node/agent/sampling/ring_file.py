"""The file of a node's samples. The file has two halves. When the newer half is full, the older half is deleted."""

from __future__ import annotations

import json
import os

from orchestrator.protocol.files import append
from orchestrator.protocol.reading import read_part
from orchestrator.protocol.samples import Sample

HALF_BYTES = 2 << 20


class SampleFile:
    """Appends samples, one per line. If a crash or a full disk has truncated a line, the next line is still valid."""

    def __init__(self, path: str, half: int = HALF_BYTES) -> None:
        self.path, self.half = path, half
        self.is_torn = _is_torn(path)

    def append(self, sample: Sample) -> None:
        """Append a sample. Raises OSError if the sample can't be written."""
        line = (json.dumps(sample.to_json(), separators=(",", ":")) + "\n").encode()
        if (size := _size(self.path)) and size + len(line) > self.half:
            os.replace(self.path, f"{self.path}.1")
            self.is_torn = False
        if self.is_torn:
            line = b"\n" + line
        self.is_torn = append(self.path, line) < len(line)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _is_torn(path: str) -> bool:
    try:
        return read_part(path, -1, 1) not in (b"", b"\n")
    except OSError:
        return False

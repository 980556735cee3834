"""Reads a run's samples repeatedly. The first call reads the newest samples, and each later call reads the samples
that were added since.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import Final

from orchestrator.protocol.layout import samples_file
from orchestrator.protocol.reading import info_of, opened
from orchestrator.protocol.samples import Sample, merged
from orchestrator.runs.files.file_cache import signature_of
from orchestrator.runs.files.samples import MOST_OF_A_FILE, NodeSamples, node_numbers, sample_of
from orchestrator.runs.store import RunDir

FIRST_BYTES: Final = 1 << 19  # bytes that the first call reads, over all nodes
LEAST_BYTES, MOST_BYTES = 4 << 10, 1 << 18  # bytes that the first call reads for one node
KEPT: Final = 20_000  # samples that are kept, over all nodes
LEAST_KEPT, MOST_KEPT = 50, 1200  # samples that are kept for one node


class SampleLooks:
    """The samples of a run's nodes. If there are too many, older samples are merged, so that the whole time is still
    covered.
    """

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._nodes: dict[int, _NodeFile] = {}

    def look(self) -> tuple[NodeSamples, ...]:
        """Read new samples, and return the samples of each node, newest last."""
        numbers = node_numbers(self._run)
        first = max(LEAST_BYTES, min(MOST_BYTES, FIRST_BYTES // max(1, len(numbers))))
        kept = max(LEAST_KEPT, min(MOST_KEPT, KEPT // max(1, len(numbers))))
        for number in numbers:
            if number not in self._nodes:
                self._nodes[number] = _NodeFile(self._run, samples_file(f"{self._run.path}/nodes/{number}"))
            self._nodes[number].look(first, kept)
        found = ((number, self._nodes[number].samples) for number in numbers)
        return tuple(NodeSamples(number, tuple(samples)) for number, samples in found if samples)


@dataclass
class _NodeFile:
    """The position up to which one node's file has been read. An incomplete last line is read again by the next
    call.
    """

    run: RunDir
    path: str
    samples: list[Sample] = field(default_factory=list)
    _inode: int = -1
    _offset: int = 0

    def look(self, first: int, kept: int) -> None:
        with contextlib.suppress(OSError):
            found = info_of(self.path, self.run.path)
            if self._inode < 0:
                if first > found.st_size:
                    self._take(f"{self.path}.1", found.st_size - first)
                self._offset = max(0, found.st_size - first)
                self._inode = found.st_ino
            elif found.st_ino != self._inode:
                self._follow()
                self._inode, self._offset = found.st_ino, 0
            elif found.st_size < self._offset:
                self.samples, self._offset = [], 0
            if found.st_size > self._offset:
                self._offset = self._take(self.path, self._offset)
        if len(self.samples) > kept:
            older = len(self.samples) // 2
            self.samples = [*_joined(self.samples[:older]), *self.samples[older:]]

    def _follow(self) -> None:
        """Continue after a rotation, which has renamed the file that was being read.

        The rest of the renamed file is read. If a second rotation has replaced that file, samples are missing, and all
        earlier samples are dropped.
        """
        older = signature_of(f"{self.path}.1")
        if older is not None and older[2] == self._inode:
            self._take(f"{self.path}.1", self._offset)
        else:
            self.samples = []

    def _take(self, path: str, start: int) -> int:
        """Parse the complete lines from the offset `start` on, and return the offset of the first byte after them. A
        negative `start` counts from the end.
        """
        with contextlib.suppress(FileNotFoundError), opened(path, self.run.path) as file:
            size = file.seek(0, os.SEEK_END)
            start = file.seek(max(0, size + start) if start < 0 else min(start, size))
            data = file.read(MOST_OF_A_FILE)
            whole = data[: data.rfind(b"\n") + 1]
            self.samples += filter(None, map(sample_of, whole.split(b"\n")))
            return start + len(whole)
        return start


def _joined(samples: list[Sample]) -> list[Sample]:
    """Merge pairs of samples, and return half as many. Samples of different attempts are not merged."""
    made: list[Sample] = []
    for one, other in zip(samples[::2], samples[1::2], strict=False):
        is_same = (one.start, one.attempt) == (other.start, other.attempt)
        made += [merged([one, other])] if is_same else [one, other]
    return [*made, *samples[len(samples) - len(samples) % 2 :]]

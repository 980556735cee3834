"""Reads how busy a run's nodes were, from the samples that their agents wrote. No node is contacted.

for node in read_samples(run):
    for sample in node.samples:  # in order, the newest last
        sample.cpu, [rank.cpu for rank in sample.ranks], [gpu.use for gpu in sample.gpus]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from orchestrator.protocol.json_text import objects_in
from orchestrator.protocol.layout import samples_file
from orchestrator.protocol.reading import names_in, read_part
from orchestrator.protocol.samples import RankSample, Sample
from orchestrator.runs.store import RunDir

MOST_OF_A_LOOK: Final = 1 << 20  # bytes over all nodes, because a command that shows a run must be fast
MOST_OF_A_FILE: Final = 64 << 20  # bytes; an agent writes 2 MiB at most
TAILS: Final = (4 << 10, 1 << 17)  # bytes for one node: the newest lines, or half an hour of a node with eight GPUs


@dataclass(frozen=True)
class NodeSamples:
    """The samples of one node, newest last."""

    node: int
    samples: tuple[Sample, ...]

    @property
    def last_ranks(self) -> tuple[RankSample, ...]:
        """Return the ranks of the newest sample that has ranks. After all ranks have ended, samples have no ranks."""
        return next((sample.ranks for sample in reversed(self.samples) if sample.ranks), ())


def read_samples(run: RunDir, tail: int | None = None, only: int | None = None) -> tuple[NodeSamples, ...]:
    """Return the samples of each node, or only those of node `only`. With `tail`, only the last `tail` bytes of each
    node's file are read.

    Damaged lines and unreadable files are skipped.
    """
    asked = [number for number in node_numbers(run) if only in (None, number)]
    found = (NodeSamples(number, tuple(_samples_in(run, number, tail))) for number in asked)
    return tuple(each for each in found if each.samples)


def node_numbers(run: RunDir) -> list[int]:
    """Return the numbers of the nodes that have a folder."""
    return sorted(int(name) for name in names_in(f"{run.path}/nodes") if name.isdecimal())


def sample_of(line: bytes) -> Sample | None:
    """Return the sample in a line, or None if the line is damaged or empty."""
    return next(map(Sample.from_json, objects_in([line])), None)


def newest_samples(run: RunDir) -> tuple[NodeSamples, ...]:
    """Return the newest samples of all nodes. With few nodes they cover about half an hour. With many nodes, each node
    has only a few samples.
    """
    nodes = max(1, len(names_in(f"{run.path}/nodes")))
    return read_samples(run, max(TAILS[0], min(TAILS[1], MOST_OF_A_LOOK // nodes)))


def _samples_in(run: RunDir, node: int, tail: int | None) -> Iterator[Sample]:
    path = samples_file(f"{run.path}/nodes/{node}")
    newer = _last_bytes(run, path, tail)
    older = _last_bytes(run, f"{path}.1", tail if tail is None else tail - len(newer))
    yield from filter(None, map(sample_of, (older + newer).split(b"\n")))


def _last_bytes(run: RunDir, path: str, tail: int | None) -> bytes:
    count = MOST_OF_A_FILE if tail is None else tail
    if count <= 0:
        return b""
    try:
        return read_part(path, -count, count, run.path)
    except OSError:
        return b""

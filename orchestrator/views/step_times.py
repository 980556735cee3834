"""Computes step times: the newest from two successive heartbeats, and earlier ones from the agents' samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from orchestrator.protocol.samples import Sample
from orchestrator.runs.files.samples import NodeSamples
from orchestrator.views.heat import Span

MOST_SHOWN: Final = 0.99  # share of all steps that a histogram shows; the slowest steps would make it too wide


@dataclass
class StepTimes:
    """Computes step times of one attempt from successive heartbeats, because one heartbeat has only a step number."""

    attempt: int = 0
    newest: dict[int, float] = field(default_factory=dict)  # seconds per step by rank
    _seen: dict[int, tuple[float, float]] = field(default_factory=dict)

    def look(self, attempt: int, beats: Mapping[int, Mapping[str, Any]]) -> None:
        """Update the step times from the present heartbeats."""
        if attempt != self.attempt:
            self.attempt, self._seen, self.newest = attempt, {}, {}
        for rank, beat in beats.items():
            step, time = beat.get("step"), beat.get("time")
            if not isinstance(step, int | float) or not isinstance(time, int | float):
                continue
            before = self._seen.get(rank)
            if before is None or step < before[0]:
                self._seen[rank] = (step, time)
            elif step > before[0] and time > before[1]:
                self.newest[rank] = (time - before[1]) / (step - before[0])
                self._seen[rank] = (step, time)


def step_times_of(nodes: Iterable[NodeSamples]) -> dict[int, float]:
    """Return the seconds that a step of each rank took, according to the newest sample of its node."""
    ranks = (rank for node in nodes for rank in node.samples[-1].ranks)
    return {rank.rank: rank.step_seconds for rank in ranks if rank.step_seconds is not None}


def step_spans(nodes: Iterable[NodeSamples]) -> Iterator[Span]:
    """Yield spans of time with the step times in them. A span is as long as a sample, or as the step if the step is
    longer.

    A span never begins before the node's first sample. Otherwise, if a clock is set during a step, the step may seem to
    take years, and the heat map would cover these years.
    """
    for node in nodes:
        since = min((sample.time - sample.seconds for sample in node.samples), default=0.0)
        for sample, told, first in _steps_of(node):
            for is_startup in (True, False):
                seconds = {rank: each for rank, each in told.items() if (rank in first) is is_startup}
                short = {rank: each for rank, each in seconds.items() if each <= sample.seconds}
                if short:
                    yield Span(sample.time - sample.seconds, sample.time, short, is_startup)
                for rank, each in seconds.items():
                    if rank not in short:
                        yield Span(max(since, sample.time - each), sample.time, {rank: each}, is_startup)


def _steps_of(node: NodeSamples) -> Iterator[tuple[Sample, dict[int, float], set[int]]]:
    """Yield (a sample, a dict from rank to its seconds per step, the ranks whose first steps of an attempt are in the
    sample).

    The oldest sample on disk may be from the middle of an attempt. It counts as a rank's first steps only if all of the
    rank's steps so far fit into about the time that the sample covers.
    """
    attempt, begun = None, set[int]()
    for number, sample in enumerate(node.samples):
        if (sample.start, sample.attempt) != attempt:
            attempt, begun = (sample.start, sample.attempt), set()
        steps = {rank.rank: rank.step for rank in sample.ranks}
        told = {rank.rank: rank.step_seconds for rank in sample.ranks if rank.step_seconds is not None}
        first = {
            rank for rank, seconds in told.items()
            if rank not in begun and (number > 0 or steps[rank] * seconds <= 2 * sample.seconds)
        }  # fmt: skip
        begun |= told.keys()
        yield sample, told, first


@dataclass(frozen=True)
class Histogram:
    """A histogram of step times over all ranks. The bins between `low` and `high` have equal widths.

    Steps that took longer than `high` are counted in `above`. The first steps of an attempt are not counted.
    """

    low: float = 0.0
    high: float = 0.0
    counts: tuple[float, ...] = ()
    above: float = 0.0
    median: float | None = None


def histogram_of(nodes: Iterable[NodeSamples], bins: int = 40) -> Histogram:
    """Return the histogram of step times. All steps in a sample are counted with their mean time."""
    steps = sorted(
        (seconds, max(1.0, sample.seconds / seconds))
        for node in nodes
        for sample, told, first in _steps_of(node)
        for rank, seconds in told.items()
        if rank not in first and seconds > 0
    )
    if not steps:
        return Histogram()
    total = sum(count for _, count in steps)
    low, high = steps[0][0], _at(steps, MOST_SHOWN * total)
    width = (high - low) / bins or high / bins
    counts = [0.0] * bins
    for seconds, count in steps:
        if seconds <= high:
            counts[min(bins - 1, int((seconds - low) / width))] += count
    above = sum(count for seconds, count in steps if seconds > high)
    return Histogram(low, low + width * bins, tuple(counts), above, _at(steps, total / 2))


def _at(steps: Sequence[tuple[float, float]], wanted: float) -> float:
    """Return the time of the step with the number `wanted`, if steps are numbered from the fastest to the slowest.

    `steps` has pairs (time of a step, number of steps that took this time), the fastest first.
    """
    reached = accumulate(count for _, count in steps)
    return next((seconds for (seconds, _), seen in zip(steps, reached, strict=True) if seen >= wanted), steps[-1][0])

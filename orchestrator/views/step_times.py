"""How long the steps of each rank take: lately by two looks at their heartbeats, over time by the agents' samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.runs.files.samples import NodeSamples
from orchestrator.views.heat import Span


@dataclass
class StepTimes:
    """Remembers the last look at one attempt of a run: one heartbeat alone tells only where a rank is."""

    attempt: int = 0
    newest: dict[int, float] = field(default_factory=dict)  # by rank, the seconds a step of its last known pace
    _seen: dict[int, tuple[float, float]] = field(default_factory=dict)

    def look(self, attempt: int, beats: Mapping[int, Mapping[str, Any]]) -> None:
        """Take in what has changed since the last look."""
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


def step_spans(nodes: Iterable[NodeSamples]) -> Iterator[Span]:
    """Yield how long steps took, over the time of each sample; a step that is longer covers all that it took.

    But nothing before the node's first sample: a clock that was set meanwhile, or a rank's own heartbeat, may tell of
    a step of years, and the map would show these.
    """
    for node in nodes:
        since = min((sample.time - sample.seconds for sample in node.samples), default=0.0)
        for sample in node.samples:
            told = {rank.rank: rank.step_seconds for rank in sample.ranks if rank.step_seconds is not None}
            short = {rank: seconds for rank, seconds in told.items() if seconds <= sample.seconds}
            if short:
                yield Span(sample.time - sample.seconds, sample.time, short)
            for rank, seconds in told.items():
                if rank not in short:
                    yield Span(max(since, sample.time - seconds), sample.time, {rank: seconds})

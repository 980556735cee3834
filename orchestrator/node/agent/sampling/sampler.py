"""Computes samples from counters: the resources that a node and its ranks have used between two readings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from orchestrator.node.agent.sampling.counters import CounterReader, Counters, Usage, usage_of
from orchestrator.protocol.samples import GpuSample, RankSample, Sample

LEAST_SECONDS = 0.05  # the shortest time between two readings from which a rate is computed


@dataclass
class _Known:
    """A rank's state at the last reading: the counters of its processes, its time spent waiting for data, and its
    step.
    """

    processes: dict[int, Usage] = field(default_factory=dict)
    waited: float | None = None
    stepped: tuple[int, float] | None = None  # (the rank's last step, the time of the heartbeat by the rank's clock)


@dataclass(frozen=True)
class Moment:
    """The time of a reading on the monotonic clock and on the wall clock, with the numbers of the start and the attempt
    that were running.
    """

    now: float
    wall: float
    start: int = 0
    attempt: int = 0


class Sampler:
    """Takes samples of one node. `gpus` returns samples of its GPUs, and `usage` returns a process's usage."""

    def __init__(
        self,
        counters: CounterReader,
        cores: int,
        gpus: Callable[[], tuple[GpuSample, ...]] = tuple,
        usage: Callable[[int], Usage | None] = usage_of,
    ) -> None:
        self.counters, self.cores, self.gpus, self.usage = counters, cores, gpus, usage
        self.before: tuple[float, Counters] | None = None
        self.ranks: dict[int, _Known] = {}
        self.joules: float | None = None

    def take(
        self, moment: Moment, trees: Mapping[int, list[int]], heartbeats: Mapping[int, Mapping[str, Any] | None]
    ) -> Sample | None:
        """Return the usage since the last reading. Return None at the first reading, or if the last reading was a
        moment ago.
        """
        counters = self.counters.read()
        before, self.before = self.before, (moment.now, counters)
        seconds = moment.now - before[0] if before is not None else 0.0
        self.ranks = {rank: self.ranks.get(rank, _Known()) for rank in trees}
        ranks = tuple(self._rank(rank, pids, heartbeats.get(rank), seconds) for rank, pids in sorted(trees.items()))
        gpus = self.gpus()
        if before is None or seconds < LEAST_SECONDS:
            return None
        watts = [gpu.power for gpu in gpus if gpu.power is not None]
        if watts:
            self.joules = (self.joules or 0.0) + sum(watts) * seconds
        old = before[1]
        return Sample(
            time=moment.wall, seconds=seconds, start=moment.start, attempt=moment.attempt,
            cpu=_rate(old.cpu, counters.cpu, seconds), cores=self.cores,
            memory=counters.memory, memory_total=counters.memory_total,
            read=_rate(old.read, counters.read, seconds), written=_rate(old.written, counters.written, seconds),
            received=_rate(old.received, counters.received, seconds), sent=_rate(old.sent, counters.sent, seconds),
            joules=self.joules, ranks=ranks, gpus=gpus,
        )  # fmt: skip

    def _rank(self, rank: int, pids: list[int], heartbeat: Mapping[str, Any] | None, seconds: float) -> RankSample:
        """Return one rank's part of the sample. A process's usage counts from the first reading that includes this
        process.
        """
        known, processes = self.ranks[rank], {}
        cpu = read = written = memory = 0.0
        for pid in pids:
            usage = self.usage(pid)
            if usage is None:
                continue
            processes[pid] = usage
            before = known.processes.get(pid)
            if before is not None and before.started == usage.started:
                cpu, read = cpu + usage.cpu - before.cpu, read + usage.read - before.read
                written += usage.written - before.written
            memory += usage.memory
        known.processes = processes
        told = heartbeat or {}
        waited, known.waited = known.waited, _number(told.get("waited"))
        share = None
        if waited is not None and known.waited is not None and seconds > 0:
            share = min(1.0, max(0.0, (known.waited - waited) / seconds))
        scale = 1 / seconds if seconds > 0 else 0.0
        step = told.get("step")
        return RankSample(
            rank, cpu * scale, memory, read * scale, written * scale,
            phase=str(told.get("phase") or "")[:20], step=step if type(step) is int else -1, waited=share,
            step_seconds=_step_seconds(known, told),
        )  # fmt: skip


def _step_seconds(known: _Known, told: Mapping[str, Any]) -> float | None:
    """Return the mean seconds per step since the last known step, and store the new step; None if there is no new
    step.
    """
    step, time = told.get("step"), _number(told.get("time"))
    if type(step) is not int or time is None or (known.stepped is not None and step == known.stepped[0]):
        return None
    before, known.stepped = known.stepped, (step, time)
    # This is the first step, or the rank has resumed from an earlier step.
    if before is None or step < before[0] or time <= before[1]:
        return None
    return (time - before[1]) / (step - before[0])


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _rate(before: float, now: float, seconds: float) -> float:
    return max(0.0, now - before) / seconds  # a counter that was reset has no rate

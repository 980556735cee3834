"""Samples of a node's resource usage; each Sample is a line of nodes/N/samples.jsonl.

A sample covers a number of seconds. Rates are means over these seconds. Levels (memory, temperature) are maxima, and
counts (steps, errors) are the last values. None means that the machine does not report the value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, TypeVar

MOST_CHARS = 80  # characters of a text
MOST_NUMBER = 1e18
FINE_SECONDS, MIDDLE_SECONDS, COARSE_SECONDS = 2.0, 10.0, 60.0
FINE_UNTIL, MIDDLE_UNTIL = 300.0, 3600.0


def seconds_per_line(age: float) -> float:
    """Return the interval in seconds that the next sample covers, if the first sample was written `age` seconds ago.
    Short runs get short intervals.
    """
    return FINE_SECONDS if age < FINE_UNTIL else MIDDLE_SECONDS if age < MIDDLE_UNTIL else COARSE_SECONDS


def lasting(seconds: float) -> str:
    """Return a duration for use in a sentence: `45 s`, `20 min`, `3 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


@dataclass(frozen=True)
class RankSample:
    """The resource usage of one rank: its process and all descendants of the process."""

    rank: int = 0
    cpu: float = 0.0  # cores
    memory: float = 0.0  # bytes of memory without the page cache
    read: float = 0.0  # bytes per second from disks
    written: float = 0.0
    phase: str = ""  # the phase in the rank's last heartbeat
    step: int = -1
    waited: float | None = None  # the fraction of the time in which the rank waited for its data
    step_seconds: float | None = None  # mean time of the steps in its heartbeats since the last sample


@dataclass(frozen=True)
class GpuSample:
    """The usage of one GPU, as the GPU's driver reports it."""

    index: int = 0
    use: float | None = None  # percent of the time in which the GPU computed
    memory: float | None = None  # bytes
    memory_total: float | None = None
    power: float | None = None  # watts
    temperature: float | None = None  # degrees Celsius
    clock: float | None = None  # MHz
    throttled: str = ""  # why the clock is reduced; limits that an administrator configured are not listed
    ecc: int | None = None  # uncorrectable memory errors


@dataclass(frozen=True)
class Sample:
    """The resource usage of one node over the `seconds` that end at `time` (wall clock)."""

    time: float = 0.0
    seconds: float = 0.0
    start: int = 0  # number of the start of the run's agents
    attempt: int = 0
    cpu: float = 0.0  # busy cores, by any process
    cores: int = 0
    memory: float = 0.0  # bytes in use that can't be freed
    memory_total: float = 0.0
    read: float = 0.0  # bytes per second from disks
    written: float = 0.0
    received: float = 0.0  # bytes per second from the network
    sent: float = 0.0
    joules: float | None = None  # energy that the GPUs used since this start of the agent
    ranks: tuple[RankSample, ...] = ()
    gpus: tuple[GpuSample, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the sample as JSON types, without unknown values."""
        parts = {name: [_to_json(each) for each in getattr(self, name)] for name in ("ranks", "gpus")}
        whole = _to_json(dataclasses.replace(self, ranks=(), gpus=()))
        return {**whole, "time": round(self.time, 3), **{name: found for name, found in parts.items() if found}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Sample:
        """Return the sample that `to_json` wrote. Damaged fields count as unknown."""
        ranks = tuple(RankSample(**_known(RankSample, each)) for each in _mappings(data.get("ranks")))
        gpus = tuple(GpuSample(**_known(GpuSample, each)) for each in _mappings(data.get("gpus")))
        return Sample(**_known(Sample, data), ranks=ranks, gpus=gpus)


def _to_json(part: Any) -> dict[str, Any]:
    values = {field.name: (getattr(part, field.name), field.default) for field in dataclasses.fields(part)}
    return {name: _rounded(value) for name, (value, default) in values.items() if value != default or name in _NAMES}


def _rounded(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return round(value) if abs(value) >= 1e4 else round(value, 3) if abs(value) >= 1 else float(f"{value:.3g}")


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _known(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of this class in `data` that are valid numbers or texts."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        value, default = data.get(field.name), field.default
        if default == ():  # the samples of ranks and GPUs are parsed separately
            continue
        if isinstance(default, str):
            if isinstance(value, str):
                found[field.name] = value[:MOST_CHARS]
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and -MOST_NUMBER < value < MOST_NUMBER:
            found[field.name] = int(value) if field.type in _WHOLE else float(value)
    return found


_WHOLE = ("int", "int | None")
_NAMES = ("rank", "index")

# -- merging

Part = TypeVar("Part", RankSample, GpuSample)


def merged(samples: Sequence[Sample]) -> Sample:
    """Merge consecutive samples into one, which has the same totals of CPU time, bytes and steps."""
    last, seconds = samples[-1], sum(each.seconds for each in samples)
    if len(samples) == 1:
        return last

    means: dict[str, Any] = {
        name: _mean([(getattr(each, name), each.seconds) for each in samples], seconds)
        for name in ("cpu", "read", "written", "received", "sent")
    }
    return dataclasses.replace(
        last,
        seconds=seconds,
        memory=max(each.memory for each in samples),
        ranks=_merged_parts(samples, "ranks", lambda part: part.rank, _merged_rank),
        gpus=_merged_parts(samples, "gpus", lambda part: part.index, _merged_gpu),
        **means,
    )


def _merged_parts(
    samples: Sequence[Sample],
    name: str,
    key: Callable[[Part], int],
    merge: Callable[[list[tuple[Part, float]], float], Part],
) -> tuple[Part, ...]:
    seconds = sum(each.seconds for each in samples)
    found: dict[int, list[tuple[Part, float]]] = {}
    for sample in samples:
        for part in getattr(sample, name):
            found.setdefault(key(part), []).append((part, sample.seconds))
    return tuple(merge(parts, seconds) for _, parts in sorted(found.items()))


def _merged_rank(parts: list[tuple[RankSample, float]], seconds: float) -> RankSample:
    rates: dict[str, Any] = {
        name: _mean([(getattr(part, name), each) for part, each in parts], seconds)
        for name in ("cpu", "read", "written")
    }
    means: dict[str, Any] = {
        name: _mean([(getattr(part, name), each) for part, each in parts]) for name in ("waited", "step_seconds")
    }
    memory = max(part.memory for part, _ in parts)
    return dataclasses.replace(parts[-1][0], memory=memory, **means, **rates)


def _merged_gpu(parts: list[tuple[GpuSample, float]], _: float) -> GpuSample:
    values: dict[str, Any] = {
        name: _mean([(getattr(part, name), each) for part, each in parts]) for name in ("use", "power", "clock")
    }
    values |= {name: _highest(getattr(part, name) for part, _ in parts) for name in ("memory", "temperature")}
    throttled = next((part.throttled for part, _ in reversed(parts) if part.throttled), "")
    return dataclasses.replace(parts[-1][0], **values, throttled=throttled)


def _mean(values: list[tuple[float | None, float]], seconds: float | None = None) -> float | None:
    """Return the mean, weighted by `seconds` if given. Return None if there are no values."""
    known = [(value, weight) for value, weight in values if value is not None]
    whole = sum(weight for _, weight in known) if seconds is None else seconds
    if not known:
        return None
    return sum(value * weight for value, weight in known) / whole if whole > 0 else known[-1][0]


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)

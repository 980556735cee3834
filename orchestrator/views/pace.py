"""Determines which rank is the slowest, by how much and why, and describes it in a sentence.

Ranks that exchange gradients after each step wait for the slowest rank, so the steps of all ranks take equally long.
Then the slowest rank is recognised because it waits for its data, or because its GPU is throttled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median_high, median_low
from typing import Final

from orchestrator.protocol.quantities import duration, rate
from orchestrator.protocol.samples import GpuSample, RankSample, Sample
from orchestrator.runs.files.samples import NodeSamples
from orchestrator.runs.findings import PACE_SECONDS, READS_MUCH, USUAL, gpus_of_ranks

SLOWER: Final = 0.1  # a rank is slower if its steps take at least this share longer than the median
WAITS: Final = 0.2  # the reason is waiting for data if a rank waits for at least this share of the time
WAITS_MORE: Final = 0.1  # and if it waits for at least this share of the time longer than the usual rank
FULL_CPU: Final = 0.95  # a CPU is fully used if at least this share of the node's cores is used
IDLER_GPU: Final = 20.0  # a GPU is idler if its use is at least so many percentage points below the usual use


@dataclass(frozen=True)
class Pace:
    """The pace of a run's ranks. `rank` is the slowest, or None if all ranks are equally fast.

    Each rank is compared with the median of all ranks. If the number of ranks is even, this is the lower median, so
    that the slower of two ranks is compared with the faster.
    """

    sentence: str
    seconds: float  # the median of the ranks' seconds per step
    rank: int | None = None
    node: int | None = None
    slower: float = 0.0  # share by which the slowest rank takes longer than the median
    why: str = ""


@dataclass(frozen=True)
class _Rank:
    """The mean values of one rank's samples in the last minutes of its newest attempt."""

    rank: int
    node: int
    seconds: float
    waited: float | None
    read: float
    gpu: float | None
    throttled: str
    is_cpu_full: bool


def pace_of(nodes: Iterable[NodeSamples], hosts: Mapping[int, str]) -> Pace | None:
    """Return the ranks' pace in the newest samples; None if no rank has reported how long its steps take."""
    ranks = [each for node in nodes for each in _ranks(node)]
    if not ranks:
        return None
    seconds, usual = median_low(each.seconds for each in ranks), _usual(ranks)
    if len(ranks) == 1:
        why = _why(ranks[0], usual)
        return Pace(f"A step takes {duration(seconds)}{f'; the rank {why}' if why else ''}.", seconds, why=why)
    slowest = max(ranks, key=lambda each: each.seconds)
    slower = slowest.seconds / seconds - 1
    if slower >= SLOWER:
        why = _why(slowest, usual)
        sentence = (
            f"{_name(slowest, hosts)} is slowest: a step takes {duration(slowest.seconds)}, "
            f"+{100 * slower:.0f} % over the median ({duration(seconds)}); "
            f"{f'it {why}' if why else 'no measurement shows why'}."
        )
        return Pace(sentence, seconds, slowest.rank, slowest.node, slower, why)
    every = "Both" if len(ranks) == 2 else f"All {len(ranks)}"
    kept = f"{every} ranks keep pace: a step takes {duration(seconds)}."
    for each in sorted(ranks, key=lambda each: -(each.waited or 0.0)):
        if why := _why(each, usual):
            sentence = f"{kept} {_name(each, hosts)} {why}, so the others may wait for it."
            return Pace(sentence, seconds, each.rank, each.node, 0.0, why)
    return Pace(kept, seconds)


def _name(rank: _Rank, hosts: Mapping[int, str]) -> str:
    host = hosts.get(rank.node)
    return f"Rank {rank.rank}{f' on {host}' if host else ''}"


@dataclass(frozen=True)
class _Usual:
    """The usual values of a run's ranks, with which each rank is compared."""

    waited: float
    read: float
    gpu: float | None
    all_throttled: bool
    all_cpus_full: bool


def _usual(ranks: Sequence[_Rank]) -> _Usual:
    gpus = [each.gpu for each in ranks if each.gpu is not None]
    several = len(ranks) > 1
    return _Usual(
        median_low(each.waited or 0.0 for each in ranks) if several else 0.0,
        median_low(each.read for each in ranks) if several else 0.0,
        median_high(gpus) if several and gpus else None,
        several and all(each.throttled for each in ranks),
        several and all(each.is_cpu_full for each in ranks),
    )


def _why(rank: _Rank, usual: _Usual) -> str:
    """Return why a rank is slower than the others, as the predicate of a sentence whose subject is the rank. Return ""
    if no sample shows a reason.
    """
    waited = rank.waited or 0.0
    if waited >= WAITS and waited >= usual.waited + WAITS_MORE:
        return f"waits for its loader {100 * waited:.0f} % of the time"
    if rank.throttled and not usual.all_throttled:
        return f"has a GPU that is held back ({rank.throttled})"
    if rank.read >= READS_MUCH and rank.read > 2 * usual.read:
        return f"reads {rate(rank.read, 'B')} from disk"
    if rank.is_cpu_full and not usual.all_cpus_full:
        return "is on a node whose CPU is fully used"
    if rank.gpu is not None and usual.gpu is not None and rank.gpu <= usual.gpu - IDLER_GPU:
        return f"uses its GPU {rank.gpu:.0f} % of the time, the others {usual.gpu:.0f} %"
    return ""


def _ranks(node: NodeSamples) -> Iterator[_Rank]:
    parts: dict[int, list[tuple[Sample, RankSample, GpuSample | None]]] = {}
    for sample in _newest(node.samples):
        places, gpus = gpus_of_ranks(sample), {gpu.index: gpu for gpu in sample.gpus}
        for rank in sample.ranks:
            parts.setdefault(rank.rank, []).append((sample, rank, gpus.get(places.get(rank.rank, -1))))
    for number, seen in parts.items():
        told = [rank.step_seconds for _, rank, _ in seen if rank.step_seconds is not None]
        if not told:
            continue
        waited = [rank.waited for _, rank, _ in seen if rank.waited is not None]
        used = [gpu.use for _, _, gpu in seen if gpu is not None and gpu.use is not None]
        throttled = {gpu.throttled for _, _, gpu in seen if gpu is not None} - {"", USUAL}
        yield _Rank(
            number, node.node, fmean(told), fmean(waited) if waited else None, fmean(rank.read for _, rank, _ in seen),
            fmean(used) if used else None, ", ".join(sorted(throttled)),
            all(sample.cores and sample.cpu >= FULL_CPU * sample.cores for sample, _, _ in seen),
        )  # fmt: skip


def _newest(samples: Sequence[Sample]) -> Iterator[Sample]:
    """Yield the newest attempt's samples with step times, from the last PACE_SECONDS seconds in which its ranks were
    alive.

    The first sample of an attempt is left out, because it covers the slow first steps.
    """
    last = next((sample for sample in reversed(samples) if sample.ranks), None)
    if last is None:
        return
    attempt = [each for each in samples if (each.start, each.attempt) == (last.start, last.attempt)]
    told = [each for each in attempt if any(rank.step_seconds is not None for rank in each.ranks)]
    steady = told[1:] or told
    yield from (each for each in steady if each.time > last.time - PACE_SECONDS)

"""Detects problems in a run's samples, called findings: idle GPUs and why, slow ranks, exhausted resources."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.protocol.hostlist import nodes_in_words, numbers_in_words
from orchestrator.protocol.quantities import rate
from orchestrator.protocol.samples import GpuSample, RankSample, Sample, lasting
from orchestrator.protocol.str_enum import StrEnum
from orchestrator.runs.files.samples import NodeSamples

IDLE_PERCENT: Final = 5.0
IDLE_SECONDS: Final = 300.0
WAITING_SHARE: Final = 0.5
LASTING_SECONDS: Final = 60.0  # seconds that a condition must last to be reported
FULL_SHARE: Final = 0.95
SLOW_TIMES: Final = 1.5  # a rank is slow if its step takes this many times the median of the other ranks
PACE_SECONDS: Final = 120.0  # the time of a step is measured over this many seconds
READS_MUCH: Final = 20e6  # bytes per second
WORKS: Final = 0.8  # cores
USUAL: Final = "power cap"  # every fully used GPU is throttled for this reason
AT_WORK: Final = ("train", "eval", "output", "")  # phases of a heartbeat; "": the program sends no heartbeats
MOST_LINES: Final = 5


class FindingKind(StrEnum):
    """The kinds of findings, worst first."""

    MEMORY = "memory"
    ECC = "ecc"
    THROTTLED = "throttled"
    GPU_IDLE = "gpu_idle"
    CPU_IDLE = "cpu_idle"
    DATA = "data"
    SLOW = "slow"


@dataclass(frozen=True)
class Finding:
    """One finding about a rank, or about a node if `rank` is None."""

    kind: FindingKind
    node: int
    rank: int | None
    seconds: float  # seconds for which the problem has lasted, as far as known
    value: float  # in the unit of the kind: percent, times, errors, degrees
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON types."""
        return {**vars(self), "kind": str(self.kind)}


def findings(nodes: Sequence[NodeSamples]) -> tuple[Finding, ...]:
    """Return all findings in these samples, worst first. Only conditions that the newest samples still show are
    reported.
    """
    found = [each for node in nodes for each in _of_node(node)]
    scores = straggler_scores(nodes)
    by_rank = {rank.rank: node for node in nodes for rank in node.samples[-1].ranks}
    found += [
        Finding(FindingKind.SLOW, by_rank[rank].node, rank, PACE_SECONDS, score)
        for rank, score in scores.items()
        if score >= SLOW_TIMES
    ]
    order = list(FindingKind)
    return tuple(sorted(found, key=lambda each: (order.index(each.kind), each.node, each.rank or 0)))


def _of_node(node: NodeSamples) -> Iterator[Finding]:
    last = node.samples[-1]
    if last.memory_total and last.memory / last.memory_total >= FULL_SHARE:
        share = 100 * last.memory / last.memory_total
        yield Finding(FindingKind.MEMORY, node.node, None, _lasted(node, _is_full), share)
    gpus = gpus_of_ranks(last)
    for gpu in last.gpus:
        yield from _of_gpu(node, gpu, next((rank for rank, index in gpus.items() if index == gpu.index), None))
    for rank in last.ranks:
        yield from _of_rank(node, rank, gpus.get(rank.rank))


def _of_gpu(node: NodeSamples, gpu: GpuSample, rank: int | None) -> Iterator[Finding]:
    if gpu.ecc:
        yield Finding(FindingKind.ECC, node.node, rank, 0.0, gpu.ecc, f"GPU {gpu.index}")

    def is_held_back(sample: Sample) -> bool:
        return any(each.index == gpu.index and each.throttled not in ("", USUAL) for each in sample.gpus)

    if (seconds := _lasted(node, is_held_back)) >= LASTING_SECONDS:
        what = f"GPU {gpu.index} is held back ({gpu.throttled})"
        yield Finding(FindingKind.THROTTLED, node.node, rank, seconds, gpu.temperature or 0.0, what)


def _of_rank(node: NodeSamples, rank: RankSample, gpu: int | None) -> Iterator[Finding]:
    def idles_on_gpu(sample: Sample) -> bool:
        use = next((each.use for each in sample.gpus if each.index == gpu), None)
        return use is not None and use < IDLE_PERCENT and _at_work(sample, rank.rank) is not None

    def idles(sample: Sample) -> bool:
        found = _at_work(sample, rank.rank)
        return found is not None and 100 * found.cpu < IDLE_PERCENT

    def waits(sample: Sample) -> bool:
        found = _at_work(sample, rank.rank)
        return found is not None and (found.waited or 0.0) >= WAITING_SHARE

    if (seconds := _lasted(node, idles_on_gpu)) >= IDLE_SECONDS:
        use = next((each.use for each in node.samples[-1].gpus if each.index == gpu), None) or 0.0
        yield Finding(FindingKind.GPU_IDLE, node.node, rank.rank, seconds, use, _why_idle(rank))
    elif (seconds := _lasted(node, waits)) >= LASTING_SECONDS:
        yield Finding(FindingKind.DATA, node.node, rank.rank, seconds, 100 * (rank.waited or 0.0))
    elif gpu is None and (seconds := _lasted(node, idles)) >= IDLE_SECONDS:
        yield Finding(FindingKind.CPU_IDLE, node.node, rank.rank, seconds, 100 * rank.cpu)


def gpus_of_ranks(sample: Sample) -> dict[int, int]:
    """Map each rank of a node to its GPU, in order. The result is empty if the node does not have as many GPUs as
    ranks.
    """
    if len(sample.gpus) != len(sample.ranks):
        return {}
    return {rank.rank: gpu.index for rank, gpu in zip(sample.ranks, sample.gpus, strict=True)}


def _is_full(sample: Sample) -> bool:
    return sample.memory_total > 0 and sample.memory / sample.memory_total >= FULL_SHARE


def _at_work(sample: Sample, rank: int) -> RankSample | None:
    return next((each for each in sample.ranks if each.rank == rank and each.phase in AT_WORK), None)


def _why_idle(rank: RankSample) -> str:
    if (rank.waited or 0.0) >= WAITING_SHARE:
        return "waiting for its data"
    if rank.read >= READS_MUCH:
        return f"reading {rate(rank.read, 'B')} from disk"
    if rank.cpu >= WORKS:
        return "computing on the CPU"
    return "and its CPU is idle too" if 100 * rank.cpu < IDLE_PERCENT else ""


def _lasted(node: NodeSamples, test: Callable[[Sample], bool]) -> float:
    """Return for how many seconds, up to the newest sample, all samples of the newest attempt have passed the test."""
    seconds, last = 0.0, node.samples[-1]
    for sample in reversed(node.samples):
        if (sample.start, sample.attempt) != (last.start, last.attempt) or not test(sample):
            break
        seconds += sample.seconds
    return seconds


# -- stragglers


def straggler_scores(nodes: Iterable[NodeSamples]) -> dict[int, float]:
    """Return each rank's time per step, as a multiple of the median of the other ranks.

    If ranks exchange gradients after each step, all ranks run at the pace of the slowest, so every result is about 1.
    """
    seconds = {rank: each for node in nodes for rank, each in step_seconds(node).items()}
    order, scores = sorted(seconds.values()), {}
    for rank, own in sorted(seconds.items()):
        if (median := _median_of_others(order, own)) > 0:
            scores[rank] = own / median
    return scores


def _median_of_others(order: Sequence[float], own: float) -> float:
    """Return the median of the sorted values without the value `own`, or 0 if there are no other values."""
    place, others = bisect_left(order, own), len(order) - 1
    below, above = (middle + (middle >= place) for middle in ((others - 1) // 2, others // 2))
    return (order[below] + order[above]) / 2 if others else 0.0


def step_seconds(node: NodeSamples) -> dict[int, float]:
    """Return the recent time per step of each rank of a node. Ranks that are not training or have not made a step
    are left out.
    """
    last = node.samples[-1]
    first: dict[int, tuple[int, float]] = {}
    after = 0.0
    for sample in reversed(node.samples):
        if (sample.start, sample.attempt) != (last.start, last.attempt) or after > PACE_SECONDS:
            break
        for rank in sample.ranks:
            if rank.phase == "train" and rank.step >= 0:
                first[rank.rank] = rank.step, after
        after += sample.seconds
    now = {rank.rank: rank.step for rank in last.ranks if rank.phase == "train"}
    made = {rank: (now[rank] - step, seconds) for rank, (step, seconds) in first.items() if rank in now}
    return {rank: seconds / steps for rank, (steps, seconds) in made.items() if steps > 0 and seconds > 0}


# -- in words


def in_words(found: Sequence[Finding], hosts: Mapping[int, str], most: int | None = MOST_LINES) -> list[str]:
    """Return `most` lines that describe the findings, worst first. Ranks with the same finding share a line.

    If more lines are needed, a further line says how many were left out. If `most` is None, all lines are returned.
    """
    groups: dict[tuple[FindingKind, str], list[Finding]] = {}
    for each in found:
        groups.setdefault((each.kind, each.why), []).append(each)
    lines = [f"{_who(group, hosts)}: {_what(group)}" for group in groups.values()]
    more = 0 if most is None else len(lines) - most
    return [*lines[:most], *([f"and {more} more: orch metrics"] if more > 0 else [])]


def _who(group: Sequence[Finding], hosts: Mapping[int, str]) -> str:
    ranks = sorted(each.rank for each in group if each.rank is not None)
    if not ranks:
        return nodes_in_words([(each.node, hosts.get(each.node, "?")) for each in group])
    return f"rank{'s' * (len(ranks) > 1)} {numbers_in_words(ranks)}"


def _what(group: Sequence[Finding]) -> str:
    kind, why = group[0].kind, group[0].why
    values = [each.value for each in group]
    value, seconds = sum(values) / len(values), lasting(min(each.seconds for each in group))
    comma = f", {why}" if why else ""
    return {
        FindingKind.MEMORY: f"no memory left: {max(values):.0f} % used",
        FindingKind.ECC: f"{why}: {sum(values):.0f} memory errors that could not be corrected",
        FindingKind.THROTTLED: f"{why} for {seconds}, at {max(values):.0f} C",
        FindingKind.GPU_IDLE: f"GPU {value:.0f} % for {seconds}{comma}",
        FindingKind.CPU_IDLE: f"CPU {value:.0f} % for {seconds}",
        FindingKind.DATA: f"waits for its data {value:.0f} % of the time, for {seconds}",
        FindingKind.SLOW: f"a step takes {max(values):.1f} times as long as on the other ranks",
    }[kind]

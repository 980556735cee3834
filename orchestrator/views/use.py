"""The use of a run's ranks, GPUs and nodes: a heat map over time, and the newest sample of each node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median_low
from typing import Final

from orchestrator.protocol.samples import GpuSample, RankSample, Sample
from orchestrator.runs.files.samples import NodeSamples
from orchestrator.runs.findings import gpus_of_ranks
from orchestrator.views.heat import HeatMap, Span, span_map


@dataclass(frozen=True)
class Measure:
    """A quantity that is measured for each rank, GPU or node. If several share a row of the heat map, the row shows the
    `worst` of their values.
    """

    title: str
    of: str
    # returns pairs (key, value), whose key is a rank, the index of a GPU, or OF_NODE
    value: Callable[[Sample], Iterable[tuple[int, float | None]]]
    worst: Callable[[Iterable[float]], float] = max
    unit: str = "%"


def _gpus(value: Callable[[GpuSample], float | None]) -> Callable[[Sample], Iterable[tuple[int, float | None]]]:
    return lambda sample: ((gpu.index, value(gpu)) for gpu in sample.gpus)


def _ranks(value: Callable[[RankSample], float | None]) -> Callable[[Sample], Iterable[tuple[int, float | None]]]:
    return lambda sample: ((rank.rank, value(rank)) for rank in sample.ranks)


def _node(value: Callable[[Sample], float | None]) -> Callable[[Sample], Iterable[tuple[int, float | None]]]:
    return lambda sample: ((OF_NODE, value(sample)),)


def _share(part: float | None, whole: float | None) -> float | None:
    return 100 * part / whole if part is not None and whole else None


OF_NODE: Final = -1
MEASURES: Final[Mapping[str, Measure]] = {
    "gpu": Measure("GPU", "GPU", _gpus(lambda gpu: gpu.use), min),
    "gpu_memory": Measure("memory of the GPU", "GPU", _gpus(lambda gpu: _share(gpu.memory, gpu.memory_total))),
    "cpu": Measure("CPU, of a core", "rank", _ranks(lambda rank: 100 * rank.cpu), min),
    "memory": Measure(
        "memory, of its node", "rank",
        lambda sample: ((rank.rank, _share(rank.memory, sample.memory_total)) for rank in sample.ranks),
    ),
    "waits": Measure("waiting for data", "rank", _ranks(lambda rank: _share(rank.waited, 1.0))),
    "node_cpu": Measure("CPU of the node", "node", _node(lambda sample: _share(sample.cpu, sample.cores))),
    "node_memory": Measure("memory of the node", "node", _node(lambda node: _share(node.memory, node.memory_total))),
    "read": Measure("disk, read", "rank", _ranks(lambda rank: rank.read), unit="B/s"),
    "written": Measure("disk, written", "rank", _ranks(lambda rank: rank.written), unit="B/s"),
    "received": Measure("network, received", "node", _node(lambda sample: sample.received), unit="B/s"),
    "sent": Measure("network, sent", "node", _node(lambda sample: sample.sent), unit="B/s"),
    "power": Measure("power of the GPU", "GPU", _gpus(lambda gpu: gpu.power), unit="W"),
    "temperature": Measure("temperature of the GPU", "GPU", _gpus(lambda gpu: gpu.temperature), unit="°C"),
}  # fmt: skip
"""The measures that a heat map can show, by name. The default is the first measure that a run has."""


@dataclass(frozen=True)
class NodeUse:
    """The newest sample of a node. If the ranks have ended, their values come from the newest sample that has ranks."""

    node: int
    newest: Sample


@dataclass(frozen=True)
class Totals:
    """The resources that a run has used, according to its samples. A value is None if no sample has it."""

    rank_memory: float | None  # the highest memory of a rank, in bytes
    gpu_memory: float | None  # the highest memory of a GPU, in bytes
    gpu_use: float | None  # the mean use of all GPUs, in percent
    step_seconds: float | None  # the median step time of all ranks


def totals_of(nodes: Iterable[NodeSamples]) -> Totals:
    """Return the resources that a run has used, from the samples of its nodes."""
    samples = [sample for node in nodes for sample in node.samples]
    ranks = [rank for sample in samples for rank in sample.ranks]
    gpus = [gpu for sample in samples for gpu in sample.gpus]
    used = [gpu.use for gpu in gpus if gpu.use is not None]
    steps = [rank.step_seconds for rank in ranks if rank.step_seconds is not None]
    return Totals(
        max((rank.memory for rank in ranks), default=None),
        max((gpu.memory for gpu in gpus if gpu.memory is not None), default=None),
        fmean(used) if used else None,
        median_low(steps) if steps else None,
    )


@dataclass(frozen=True)
class UseView:
    """The use of a run's machines: a heat map of one measure, and the newest sample of each node."""

    measure: str  # the measure that the map shows; empty without samples
    measures: Mapping[str, str]  # titles of the measures that the run has, by name
    map: HeatMap
    nodes: tuple[NodeUse, ...]


def use_view(
    nodes: Sequence[NodeSamples], measure: str | None = None, *, columns: int, rows: int | None = None
) -> UseView:
    """Return the view with a heat map of `measure`, or of another measure if the run does not have it."""
    there = {name: each.title for name, each in MEASURES.items() if _has(nodes, each)}
    shown = measure if measure in there else next(iter(there), "")
    newest = tuple(NodeUse(each.node, _newest(each)) for each in nodes)
    if not shown:
        return UseView("", {}, HeatMap("", "%", (), ()), newest)
    asked, spans = MEASURES[shown], _spans(nodes, MEASURES[shown])
    found = span_map(asked.title, asked.unit, spans, columns=columns, rows=rows, worst=asked.worst, of=asked.of)
    return UseView(shown, there, found, newest)


def uses_of_ranks(nodes: Iterable[NodeSamples]) -> dict[int, Mapping[str, float]]:
    """Return the newest use of each rank: the number of cores that it keeps busy, the utilization of its GPU (from 0 to
    1), and the share of the time (from 0 to 1) for which it waits for data.
    """
    found: dict[int, Mapping[str, float]] = {}
    for node in nodes:
        newest = node.samples[-1]
        gpus, by_index = gpus_of_ranks(newest), {gpu.index: gpu.use for gpu in newest.gpus}
        for rank in newest.ranks:
            use = by_index.get(gpus.get(rank.rank, -1))
            told = {"cpu": rank.cpu, "gpu": None if use is None else use / 100, "waits": rank.waited}
            found[rank.rank] = {name: share for name, share in told.items() if share is not None}
    return found


def _has(nodes: Iterable[NodeSamples], measure: Measure) -> bool:
    newest = (_newest(node) for node in nodes)
    return any(value is not None for sample in newest for _, value in measure.value(sample))


def _newest(node: NodeSamples) -> Sample:
    """Return the newest sample. If the ranks have ended, their values come from the newest sample that has ranks."""
    last = node.samples[-1]
    return last if last.ranks else Sample(**{**vars(last), "ranks": node.last_ranks})


def _spans(nodes: Sequence[NodeSamples], measure: Measure) -> list[Span]:
    """Return a span for each sample. GPUs are numbered consecutively across all nodes of the run."""
    gpus = sorted({(node.node, gpu.index) for node in nodes for sample in node.samples for gpu in sample.gpus})
    number = {each: place for place, each in enumerate(gpus)} if measure.of == "GPU" else {}

    def numbered(node: int, key: int) -> int:
        return node if key == OF_NODE else number.get((node, key), key)

    return [
        Span(sample.time - sample.seconds, sample.time, {
            numbered(node.node, key): value for key, value in measure.value(sample) if value is not None
        })
        for node in nodes for sample in node.samples
    ]  # fmt: skip

"""Renders a run's samples as sparklines for each node, GPU and rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.cli.render.escapes import one_line
from orchestrator.cli.render.tables import Style, cut, plain
from orchestrator.protocol.quantities import duration, rate, size
from orchestrator.protocol.samples import GpuSample, RankSample, Sample, merged
from orchestrator.runs.files.samples import NodeSamples
from orchestrator.runs.findings import step_seconds

BLOCKS: Final = "▁▂▃▄▅▆▇█"
ASCII: Final = "_.:-=+*#"
NAME_WIDTH: Final = 10
LEAST_COLUMNS, MOST_COLUMNS = 10, 60
TEXT_WIDTH: Final = 40  # the most characters of the text after a sparkline
Value = Callable[[Sample], float | None]


def sparkline(values: Sequence[float | None], top: float, *, blocks: str = BLOCKS) -> str:
    """Return a character for each value between 0 and `top`, and a blank for a missing value."""
    return "".join(" " if value is None else _block(value, top, blocks) for value in values)


def _block(value: float, top: float, blocks: str) -> str:
    share = value / top if top > 0 and math.isfinite(value) else 0.0
    return blocks[min(len(blocks) - 1, max(0, int(share * len(blocks))))]


def in_columns(samples: Sequence[Sample], columns: int, seconds: float) -> list[Sample | None]:
    """Downsample the last `seconds` to one sample for each of `columns` equal time spans; None for a span without
    samples.

    The samples that end in a span are merged. If no sample ends in a span, the sample that covers the span's end is
    used.
    """
    begin, width = samples[-1].time - seconds, seconds / columns
    spans: list[list[Sample]] = [[] for _ in range(columns)]
    covering: list[Sample | None] = [None] * columns
    for sample in samples:
        last = min(columns - 1, math.ceil((sample.time - begin) / width) - 1)
        first = max(0, math.floor((sample.time - sample.seconds - begin) / width))
        if last >= 0:
            spans[last].append(sample)
            covering[first:last] = [sample] * max(0, last - first)
    return [merged(span) if span else cover for span, cover in zip(spans, covering, strict=True)]


@dataclass(frozen=True)
class View:
    """The time span and the size of a page of sparklines, and its characters."""

    seconds: float
    width: int = 100
    blocks: str = BLOCKS
    ranks: bool = True  # whether each rank has a line too

    @property
    def columns(self) -> int:
        """Return the number of characters of a sparkline."""
        return max(LEAST_COLUMNS, min(MOST_COLUMNS, self.width - NAME_WIDTH - TEXT_WIDTH - 6))


def metrics_page(nodes: Sequence[NodeSamples], hosts: Mapping[int, str], view: View, style: Style = plain) -> str:
    """Return sparklines of the use of each node, its GPUs and its ranks in the last `view.seconds`."""
    parts = []
    for node in nodes:
        lines = [style(f"node {node.node} ({one_line(hosts.get(node.node, '?'))})", "cyan")]
        lines += [cut(line, view.width) for line in _lines_of(node, view)]
        parts.append("\n".join(lines))
    return "\n\n".join(
        [f"the last {duration(view.seconds)}; a column is {duration(view.seconds / view.columns)}", *parts]
    )


def _lines_of(node: NodeSamples, view: View) -> Iterator[str]:
    spans, last = in_columns(node.samples, view.columns, view.seconds), node.samples[-1]

    def line(name: str, value: Value, text: str, top: float | None = None) -> str:
        values = [None if span is None else value(span) for span in spans]
        highest = max((each for each in values if each is not None), default=0.0)
        drawn = sparkline(values, top or highest, blocks=view.blocks)
        return f"  {name:<{NAME_WIDTH}}{drawn}  {text}"

    yield line("CPU", lambda each: each.cpu, f"{last.cpu:.1f} of {last.cores} cores", last.cores)
    share = 100 * last.memory / last.memory_total if last.memory_total else 0.0
    used = f"{share:.0f} % of {size(last.memory_total)}"
    yield line("memory", lambda each: each.memory, used, last.memory_total)
    disk = f"read {rate(last.read, 'B')}, written {rate(last.written, 'B')}"
    yield line("disk", lambda each: each.read + each.written, disk)
    network = f"in {rate(last.received, 'B')}, out {rate(last.sent, 'B')}"
    yield line("network", lambda each: each.received + each.sent, network)
    for gpu in last.gpus:
        yield line(f"GPU {gpu.index}", _of_gpu(gpu.index, lambda each: each.use), gpu_text(gpu), 100.0)
    if not view.ranks:
        return
    steps = step_seconds(node)
    for rank in node.last_ranks:
        value = _of_rank(rank.rank, lambda each: each.cpu)
        top = max([1.0, *(value(each) or 0.0 for each in spans if each is not None)])
        yield line(f"rank {rank.rank}", value, rank_text(rank, steps.get(rank.rank)), top)


def _of_gpu(index: int, value: Callable[[GpuSample], float | None]) -> Value:
    return lambda sample: next((value(gpu) for gpu in sample.gpus if gpu.index == index), None)


def _of_rank(number: int, value: Callable[[RankSample], float | None]) -> Value:
    return lambda sample: next((value(rank) for rank in sample.ranks if rank.rank == number), None)


def gpu_text(gpu: GpuSample) -> str:
    """Describe a GPU, as in `97 %, 12.0 GiB, 312 W, 64 C, held back (thermal)`. Values that the GPU does not report are
    left out.
    """
    said = [
        None if gpu.use is None else f"{gpu.use:.0f} %",
        None if gpu.memory is None else size(gpu.memory),
        None if gpu.power is None else f"{gpu.power:.0f} W",
        None if gpu.temperature is None else f"{gpu.temperature:.0f} C",
        f"held back ({one_line(gpu.throttled)})" if gpu.throttled else None,
    ]
    return ", ".join(each for each in said if each)


def rank_text(rank: RankSample, step_seconds: float | None = None) -> str:
    """Describe a rank, as in `98 % CPU, 1.2 GiB, train, 120 ms a step, waits 80 %`."""
    said = [
        f"{100 * rank.cpu:.0f} % CPU, {size(rank.memory)}",
        one_line(rank.phase),
        "" if step_seconds is None else f"{duration(step_seconds)} a step",
        f"waits {100 * rank.waited:.0f} %" if rank.waited is not None and rank.waited >= 0.05 else "",
    ]
    return ", ".join(filter(None, said))

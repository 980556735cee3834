"""Page 7: the use of ranks and GPUs over time, and each node's newest sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rich.text import Text

from orchestrator.cli.render.escapes import one_line
from orchestrator.cli.render.sparklines import gpu_text, rank_text
from orchestrator.cli.render.tables import cut
from orchestrator.cli.top.marks import heat_map, margin_of, share
from orchestrator.cli.top.page import Again, Look, Press, Scroll, Step
from orchestrator.cli.top.run_pages.base import OfRun
from orchestrator.protocol.quantities import rate, size
from orchestrator.runs.store import RunDir
from orchestrator.views.heat import HeatMap
from orchestrator.views.reader import Reader
from orchestrator.views.run import RunView
from orchestrator.views.use import NodeUse, UseView


class UsePage(OfRun[UseView]):
    """The page with a heat map of one measure, and below it the newest sample of each node."""

    name, number = "use", 7
    keys: ClassVar = (("m", "of what"), ("up down", "move"), ("1-7", "pages"), ("w", "why"), ("c", "cancel"))

    def __init__(self, reader: Reader, run: RunDir) -> None:
        super().__init__(reader, run)
        self.measure: str | None = None  # None means the first measure that the run has
        self.scroll = Scroll()
        self._size = (60, 10)  # columns and rows of the heat map at the last drawing

    def look_at(self, view: RunView) -> UseView:
        columns, rows = self._size
        return self.reader.use(self.run, self.measure, columns=columns, rows=rows)

    def lines(self, body: UseView, look: Look) -> list[Text]:
        """Return lines with the heat map, whose newest values are on the right, and the visible part of the samples."""
        if not body.nodes:
            return [Text("this run has no samples: a first one takes 2 s, and none is taken with sampling: false")]
        self._size = (max(8, look.width - margin_of(body.map) - 1), max(1, look.height // 2 - 3))
        above = [*_map(body.map, look), Text("")]
        hosts = {node.node: node.host for node in self.data.view.nodes} if self.data is not None else {}
        numbers = [cut(line, look.width) for node in body.nodes for line in _numbers(node, hosts.get(node.node, "?"))]
        window = self.scroll.window(len(numbers), max(1, look.height - len(above)))
        return [*above, *(Text(numbers[at], "" if numbers[at].startswith(" ") else "bold") for at in window)]

    def own_presses(self) -> dict[str, Press]:
        """Return the keys that choose the measure and scroll the samples, with their actions."""
        return {**self.scroll.presses(), "m": self._next}

    def _next(self) -> Step:
        if self.data is not None and self.data.body.measures:
            names = list(self.data.body.measures)
            self.measure = names[(names.index(self.data.body.measure) + 1) % len(names)]
        return Again()


def _map(found: HeatMap, look: Look) -> list[Text]:
    if not found.rows:
        return [Text("no rank and no GPU has been measured yet")]
    low, high = (rate(each or 0.0, "B") if found.unit == "B/s" else f"{each or 0:.0f} {found.unit}" for each in
                 (found.low, found.high))  # fmt: skip
    top = 100.0 if found.unit == "%" else found.high or 1.0

    def cell(value: float | None) -> Text:
        return share(None if value is None else 100 * value / top, look.marks)

    drawn = heat_map(found, max(1, look.height // 2 - 2), cell, look.now)
    return [Text(f"{found.of}s by time: {found.what}, {low} to {high}"), *drawn]


def _numbers(node: NodeUse, host: str) -> Iterator[str]:
    newest = node.newest
    memory = 100 * newest.memory / newest.memory_total if newest.memory_total else 0.0
    yield (
        f"node {node.node} ({one_line(host)})  CPU {newest.cpu:.1f} of {newest.cores} cores  memory {memory:.0f} % of "
        f"{size(newest.memory_total)}  net {rate(newest.received, 'B')} in, {rate(newest.sent, 'B')} out"
    )
    for gpu in newest.gpus:
        yield f"  GPU {gpu.index}   {gpu_text(gpu)}"
    for rank in newest.ranks:
        yield f"  rank {rank.rank}  {rank_text(rank)}"

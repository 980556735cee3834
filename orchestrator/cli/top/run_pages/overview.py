"""Page 1: a run's state, its phases, and its ranks as a strip of cells and as a list."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text

from orchestrator.cli.render import runs as render
from orchestrator.cli.render.tables import counted, cut, fold
from orchestrator.cli.top.marks import RANK_COLOURS, cells, paint, strip
from orchestrator.cli.top.page import Cursor, Look, Open, Press, Say, Step, pointed
from orchestrator.cli.top.run_pages.base import OfRun
from orchestrator.cli.top.run_pages.log import LogPage
from orchestrator.protocol.quantities import duration, number
from orchestrator.runs.store import RunDir
from orchestrator.views.reader import Reader
from orchestrator.views.run import RankRow, RunView
from orchestrator.views.timeline import SpanKind, Timeline

HEADER = ("RANK", "NODE", "STATE", "STEP", "PHASE", "S/STEP", "LOSS", "END")
SPARE = ("LOSS", "PHASE")
STRIP_ROWS = 4


class Overview(OfRun[RunView]):
    """The page with a run's most important facts, and a list of ranks with a cursor."""

    name, number = "overview", 1
    keys: ClassVar = (("enter", "its log"), ("1-7", "pages"), ("f", "follow"), ("w", "why"), ("c", "cancel"))

    def __init__(self, reader: Reader, run: RunDir) -> None:
        super().__init__(reader, run)
        self.cursor = Cursor()

    def look_at(self, view: RunView) -> RunView:
        return view

    def lines(self, body: RunView, look: Look) -> list[Text]:
        """Return lines with the facts, the phases, the ranks as cells, and the list of ranks."""
        top = [Text(cut(line, look.width)) for line in _facts(body, look.now)]
        top += [*phases(body.timeline, look), Text(""), *strip(body.ranks, look.width, STRIP_ROWS, look.marks)]
        if not body.ranks:
            return [*top, Text("no rank has been started yet")]
        window = self.cursor.window(len(body.ranks), look.height - len(top) - 2)
        shown = [body.ranks[number] for number in window]
        header, *lines = cells(HEADER, [_cells(rank) for rank in shown], look.width - 2, SPARE)
        for line, rank in zip(lines, shown, strict=True):
            paint(line, rank.state, RANK_COLOURS.get(rank.state, ""))
        return [*top, Text(""), *pointed([header, *lines], self.cursor.at - window.start + 1)]

    def own_presses(self) -> dict[str, Press]:
        return {**self.cursor.presses(), "enter": self._log, "right": self._log}

    def _log(self) -> Step:
        ranks = self.data.body.ranks if self.data is not None else ()
        if self.cursor.at >= len(ranks):
            return Say("there is no rank here")
        return Open(LogPage(self.reader, self.run, ranks[self.cursor.at].rank))


def _facts(view: RunView, now: float) -> list[str]:
    row = view.row
    verb = "took" if row.is_final else "running"
    took = f"  {verb} {duration((row.ended or now) - row.started)}" if row.started else ""
    tries = f"  attempt {view.attempt} ({counted(row.restarts, 'restart')})" if row.restarts else ""
    ranks = counted(row.world_size, "rank") if row.world_size else "? ranks"
    job = f"  job {view.job}" if view.job else ""
    lines = [f"{row.profile}, {counted(view.nodes, 'node')}, {ranks}{took}{tries}{job}"]
    said = render.shown_line(row.note) or ("" if row.is_final else render.progress(view.progress))
    lines += [said] if said else []
    result = render.result_line(view.result)
    return [*lines, *([f"result: {result}"] if result else []), *(render.shown_line(note) for note in view.notes)]


def phases(timeline: Timeline, look: Look) -> list[Text]:
    """Return lines with the phases of a run and their total times."""
    spans = [span for span in timeline.spans if span.kind is SpanKind.PHASE]
    took: dict[str, float] = {}
    for span in spans:
        took[span.name] = took.get(span.name, 0.0) + max(0.0, (span.end or timeline.end) - span.start)
    words = [f"{name} {duration(seconds)}" for name, seconds in took.items()]
    return [Text(line) for line in fold(" > ".join(words), look.width, 2)]


def _cells(rank: RankRow) -> list[str]:
    step_time = duration(rank.step_time)
    loss = number(rank.loss)
    step = str(rank.step) if rank.step is not None else "-"
    use = " ".join(f"{name} {100 * share:.0f} %" for name, share in rank.use.items())
    node = f"{rank.node} {rank.host}"
    return [str(rank.rank), node, rank.state, step, rank.phase or "-", step_time, loss, rank.end or use]

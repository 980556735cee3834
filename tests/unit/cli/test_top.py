"""orch top, driven by keys at 80x24: each page and each key, on runs as they lie on the disk."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from orchestrator.backends.base import Sight
from orchestrator.cli import opening
from orchestrator.cli.render.runs import note
from orchestrator.cli.top.app import Canvas, Top
from orchestrator.cli.top.marks import ASCII, UNICODE, Marks
from orchestrator.cli.top.run_pages import Overview
from orchestrator.cli.top.runs_page import RunsPage
from orchestrator.node.agent.sampling.ring_file import SampleFile
from orchestrator.outcome.verdict import Outcome, Verdict
from orchestrator.protocol.layout import samples_file
from orchestrator.protocol.samples import GpuSample, RankSample, Sample
from orchestrator.runs.store import RunDir, remove_run
from orchestrator.views.reader import Reader
from tests.patience import PATIENCE
from tests.result import Result
from tests.unit.views.runs_made import FAILED, beat, begin, end, make, tell

Drive = Callable[["Seen"], Awaitable[None]]
HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold red]not markup[/] \x9b31m\x07"


class Seen:
    """The screen as a person sees it, and the keys."""

    def __init__(self, app: Top, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot

    @property
    def text(self) -> str:
        width, height = self.app.size
        canvas = self.app.query_one(Canvas)
        lines = ["".join(segment.text for segment in canvas.render_line(y)) for y in range(height)]
        assert len(canvas.lines) <= height
        assert {len(line) for line in lines} == {width}
        return "\n".join(line.rstrip() for line in lines)

    async def keys(self, *names: str) -> None:
        await self.pilot.press(*names)

    async def until(self, words: str) -> str:
        """The screen, once the words are on it."""
        end = time.monotonic() + PATIENCE
        while not re.search(words, self.text, re.MULTILINE):
            assert time.monotonic() < end, f"{words!r} never came:\n{self.text}"
            await self.pilot.pause(0.01)  # what is read beside the screen sends the test no event
        return self.text


def drive(root: Path, steps: Drive, run: RunDir | None = None, marks: Marks = UNICODE, **sized: Any) -> None:
    reader = Reader(root, note)
    pages = [RunsPage(reader), *([Overview(reader, run)] if run is not None else [])]

    async def go() -> None:
        app = Top(pages, marks)
        async with app.run_test(**{"size": (80, 24), **sized}) as pilot:
            await steps(Seen(app, pilot))
            app.exit()  # as the program ends: first who reads, then the screen
            await app._task

    asyncio.run(go())


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents of this machine's runs count as alive: their processes are not what is looked at here."""
    monkeypatch.setattr("orchestrator.backends.agents.backend.Agents.look", lambda *_, **__: Sight({0: True, 1: True}))


def failed(root: Path) -> RunDir:
    """A run with a log, metrics and a verdict."""
    run = make(root, "train-abcdef")
    begin(run)
    for step in (10, 20):
        beat(run, 0, step=step, total=100, time=1.0 * step, phase="train", loss=0.5)
    text = "".join(f"line {number}{' needle' if number % 40 == 7 else ''}\n" for number in range(200))
    (run.node(0) / "attempt_0" / "rank_0.log").write_text(text + f"{HOSTILE}\n")
    (run.node(0) / "attempt_0" / "rank_1.log").write_text("of rank one\n")
    lines = ({"kind": "train", "step": step, "loss": 4 / (step + 1), "rate": 1000 + step, "time": 100 + 2 * step}
             for step in range(50))  # fmt: skip
    (run.path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    tell(run, 0, "rank_exit", 149.0, rank=1, code=1, attempt=0)
    end(run, FAILED)
    return run


def test_the_list_is_moved_in_filtered_and_opened(tmp_path: Path) -> None:
    for number in range(30):
        end(make(tmp_path, f"train{number:02d}-abcdef"), Verdict(Outcome.SUCCEEDED, reason=f"the reason {number:02d}"))

    async def steps(seen: Seen) -> None:
        text = await seen.until("30 runs; 30 succeeded")
        assert "> train29-abcdef" in text
        assert "the reason 29" in text
        await seen.keys("down", "j", "pagedown")
        assert re.search(r"^> train06", seen.text, re.MULTILINE)
        await seen.keys("end", "k")
        assert re.search(r"^> train01", seen.text, re.MULTILINE)
        make(tmp_path, "newest-abcdef")
        await seen.until("31 runs")
        assert re.search(r"^> train01", seen.text, re.MULTILINE)  # it stays the chosen one
        await seen.keys("g")
        assert re.search(r"^> newest", seen.text, re.MULTILINE)
        await seen.keys("slash", *"reason 1")
        assert "filter: reason 1_" in seen.text
        await seen.keys("backspace", *"08", "enter")
        assert "train08" in await seen.until("; 1 with 'reason 08'")
        await seen.keys("enter")
        assert "lab, 1 node" in await seen.until(r"train08-abcdef  succeeded  \[1:overview\]")
        await seen.keys("escape", "slash", "ctrl+u", *"zzz", "enter")
        await seen.until("no run has 'zzz'")
        await seen.keys("enter")
        assert "there is no run here" in seen.text
        await seen.keys("slash", *"y", "escape")
        assert "no run has 'zzz'" in seen.text

    drive(tmp_path, steps)


@pytest.mark.usefixtures("alive")
def test_a_run_that_goes_on_is_watched(tmp_path: Path) -> None:
    run = make(tmp_path, "train-abcdef", nodes=2)

    async def steps(seen: Seen) -> None:
        await seen.until("no rank has been started yet")
        begin(run, nodes=2)
        for rank in range(4):
            beat(run, rank, node=rank // 2, step=10, total=100, time=50.0, phase="train", loss=0.5)
        text = await seen.until(r"(running +10 +train.*\n.*){4}")
        assert "0-3 rrrr" in text
        assert "step 10/100 (10 %), loss 0.5" in text
        assert re.search(r"^> 0 +0 n1 +running +10 +train", text, re.MULTILINE)
        for rank in range(4):
            beat(run, rank, node=rank // 2, step=20, total=100, time=60.0 + 10 * (rank == 2), phase="train")
        assert re.search(r"2 +1 n2 +running +20 +train +2\.0 s ", await seen.until("0-3 ▂▂▆▂"))
        await seen.keys("3")
        await seen.until("no rank has reported two steps")
        for node in range(2):
            ranks = (RankSample(2 * node, step_seconds=1.0 + node), RankSample(2 * node + 1, step_seconds=1.0))
            SampleFile(samples_file(str(run.node(node)))).append(Sample(time=102.0, seconds=2.0, ranks=ranks))
        assert re.search(r"^2 +▆", await seen.until("a step takes 1.0 s usually, from 1.0 s to 2.0 s"), re.MULTILINE)
        assert seen.text.splitlines()[1].startswith("Rank 2 on n2 is slowest: a step takes 2.0 s, +100 % over")
        tell(run, 1, "rank_exit", 149.0, rank=3, code=1, attempt=0)
        await seen.keys("1")
        assert re.search(r"3 +1 n2 +failed", await seen.until("0-3 ▂▂▆F"))
        end(run, FAILED)
        await seen.until("train-abcdef  failed")

    drive(tmp_path, steps, run)


def test_the_curves_are_of_any_two_metrics_by_step_or_time(tmp_path: Path) -> None:
    run = failed(tmp_path)

    async def steps(seen: Seen) -> None:
        await seen.keys("2")
        text = await seen.until("last 1,049")
        assert re.search(r"^loss$", text, re.MULTILINE)
        assert re.search(r"0 +step +49$", text, re.MULTILINE)
        await seen.keys("x")
        await seen.until(r"0 +seconds +98$")
        await seen.keys("s")
        await seen.until("smoothed 0.6")
        await seen.keys("m")
        assert "last 0.08" not in await seen.until("^rate\n(.*\n)+rate\n")
        await seen.keys("n")
        await seen.until("^rate\n(.*\n)+loss\n")

    drive(tmp_path, steps, run)


def test_a_log_is_paged_searched_and_changed_for_another_ranks(tmp_path: Path) -> None:
    run = failed(tmp_path)

    async def steps(seen: Seen) -> None:
        await seen.keys("f")
        text = await seen.until("rank 0, attempt 0, .* following")
        assert "line 199" in text
        assert "[bold red]not markup[/]" in text
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
        await seen.keys("slash", *"Needle", "enter")
        await seen.until("no 'Needle' before this")
        await seen.keys("slash", "ctrl+u", *"needle", "enter")
        await seen.until(r"at \d+ %\nline 167 needle\n")
        await seen.keys("N", "N", "n")
        await seen.until(r"at \d+ %\nline 127 needle\nline 128\n")
        await seen.keys("G")
        await seen.until("following")
        await seen.keys("g")
        await seen.until(r"%\nline 0\n")
        await seen.keys("down", "pagedown", "up")
        await seen.until(r"%\nline 21\n")
        await seen.keys("right")
        await seen.until(r"%\n\n\n")
        await seen.keys("left", "right_square_bracket")
        await seen.until(r"rank 1, .*following\nof rank one")
        (run.node(0) / "attempt_0" / "rank_1.log").write_text("of rank one\nand more\n")
        await seen.until(r"of rank one\nand more")
        await seen.keys("left_square_bracket", "n")
        await seen.until("rank 0, ")
        (run.node(0) / "attempt_0" / "rank_0.log").unlink()
        await seen.until("no log of rank 0 is here yet")

    drive(tmp_path, steps, run)


def test_the_events_the_verdict_and_the_help(tmp_path: Path) -> None:
    run = failed(tmp_path)

    async def steps(seen: Seen) -> None:
        await seen.keys("5")
        assert "rank 1 ended with exit co" in await seen.until("rank_exit")
        await seen.keys("tab")
        text = await seen.until(r"train-abcdef failed \(user error\)")
        assert "ended with exit code 1: boom" in text
        await seen.keys("question_mark")
        assert "Ctrl-C quit" in await seen.until("^keys$")
        await seen.keys("question_mark", "escape")
        await seen.until(r"\[6:why\]")
        await seen.keys("escape")
        await seen.until("orch top  1 run; 1 failed")
        await seen.keys("escape", "w")
        await seen.until(r"\[6:why\]")
        await seen.keys("q")
        assert not seen.app.is_running or seen.app._exit

    drive(tmp_path, steps, run)


@pytest.mark.usefixtures("alive")
def test_how_busy_a_run_is_is_a_page_of_its_own(tmp_path: Path) -> None:
    run = make(tmp_path, "train-abcdef", nodes=2)
    begin(run, nodes=2)

    def sampled(node: int, at: float, cpu: float) -> None:
        ranks = tuple(RankSample(2 * node + rank, cpu=cpu if rank else 1.0, memory=1 << 30) for rank in range(2))
        gpus = tuple(GpuSample(index, use=100.0 * (index != node), power=71.0) for index in range(2))
        whole = Sample(time=at, seconds=2.0, cpu=1.5, cores=8, memory_total=8 << 30, ranks=ranks, gpus=gpus)
        SampleFile(samples_file(str(run.node(node)))).append(whole)

    async def steps(seen: Seen) -> None:
        await seen.keys("7")
        await seen.until("this run has no samples")
        for node in range(2):
            sampled(node, 102.0, 0.5)
        text = await seen.until("GPUs by time: GPU, 0 % to 100 %")
        assert len(text.splitlines()) <= 24
        for row in ("0 +▁+", "1 +█+", "2 +█+", "3 +▁+"):
            assert re.search(rf"^{row}$", text, re.MULTILINE)
        assert "node 0 (n1)  CPU 1.5 of 8 cores" in text
        assert "  GPU 0   0 %, 71 W" in text
        assert "  rank 0  100 % CPU, 1.0 GiB" in text
        assert re.search(r"^node 1 \(n2\)(.*\n)+  rank 3  50 % CPU", text, re.MULTILINE)
        await seen.pilot.resize_terminal(80, 16)
        assert "rank 3" not in seen.text
        await seen.keys("end")
        await seen.until("  rank 3  50 % CPU")
        await seen.keys("m")
        assert re.search(r"^1 +▅+$", await seen.until("ranks by time: CPU, of a core, 50 % to 100 %"), re.MULTILINE)
        sampled(0, 104.0, 0.0)
        assert re.search(r"^1 +▅+.?▁+$", await seen.until(", 0 % to 100 %"), re.MULTILINE)
        await seen.keys("1")
        await seen.until(r"1 +0 n1 +running .* cpu 0 % gpu 100 %$")

    drive(tmp_path, steps, run)


@pytest.mark.usefixtures("alive")
def test_the_page_of_a_run_is_opened_by_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, opened = failed(tmp_path), list[str]()
    monkeypatch.setattr(opening, "detached_server", lambda _root: (None, "code"))
    monkeypatch.setattr(
        opening, "open_page", lambda _root, _server, _code, place: [opened.append(place) or "see there"]
    )

    async def steps(seen: Seen) -> None:
        await seen.keys("o")
        await seen.until("see there; the server keeps running; to stop it: orch ui --stop")
        await seen.keys("escape")
        await seen.until("orch top  1 run;")
        await seen.keys("o")
        await seen.until("see there")
        assert opened == ["/run/train-abcdef"] * 2
        monkeypatch.undo()
        monkeypatch.setattr(opening, "find_spec", lambda _name: None)
        await seen.keys("o")
        await seen.until("orch ui needs Python packages that are not installed")

    drive(tmp_path, steps, run)


@pytest.mark.usefixtures("alive")
def test_a_cancel_asks_first_and_says_why_it_can_not_be_done(tmp_path: Path) -> None:
    run, going = failed(tmp_path), make(tmp_path, "going-abcdef")
    begin(going)
    tmp_path.chmod(0o777)

    async def steps(seen: Seen) -> None:
        await seen.keys("c")
        assert "cancel train-abcdef? " in seen.text
        await seen.keys("n")
        assert "left as it is" in seen.text
        await seen.keys("c", "y")
        await seen.until(r"train-abcdef already finished \(failed\)")
        await seen.keys("escape")
        await seen.until("orch top  2 runs")
        await seen.keys("g", "c")
        assert "cancel going-abcdef? " in seen.text
        await seen.keys("y")
        await seen.until(r"may\s+be\s+written\s+by\s+others")
        assert not (going.path / "cancel.json").exists()

    drive(tmp_path, steps, run)


@pytest.mark.usefixtures("alive")
def test_without_utf8_all_is_ascii_and_small_or_large_all_is_drawn(tmp_path: Path) -> None:
    run = failed(tmp_path)
    (run.node(0) / "attempt_0" / "rank_0.log").write_text("größer\n")
    going = make(tmp_path, "going-abcdef")
    begin(going)

    async def steps(seen: Seen) -> None:
        beat(going, 0, step=1, time=1.0)
        await seen.until("0 n1 +running +1 ")
        beat(going, 0, step=2, time=2.0)
        await seen.until("0-1 :r")
        for key, words in (
            ("2", "no curves"),
            ("3", "has reported two steps"),
            ("4", "no log"),
            ("5", "agent_started"),
            ("6", "has not ended"),
            ("7", "no samples"),
        ):
            await seen.keys(key)
            assert (await seen.until(words)).isascii()
        await seen.keys("escape")
        await seen.until("orch top  2 runs")
        await seen.keys("down", "enter", "2")
        assert "*" in await seen.until("last 1,049")
        await seen.keys("4")
        await seen.until("gr\\?\\?er|gr\\?+er")
        for size in ((20, 5), (200, 60), (40, 3)):
            await seen.pilot.resize_terminal(*size)
            for key in "1234567":
                await seen.keys(key)
                assert seen.text.isascii()

    drive(tmp_path, steps, going, ASCII)


def test_a_run_that_is_removed_while_it_is_looked_at_is_said_to_be_gone(tmp_path: Path) -> None:
    run = make(tmp_path, "train-abcdef")

    async def steps(seen: Seen) -> None:
        await seen.until("no rank has been started yet")
        remove_run(tmp_path, run)
        for key in "234567":
            await seen.keys(key)
            await seen.until("unreadable")
        await seen.keys("escape")
        await seen.until("no runs yet")

    drive(tmp_path, steps, run)


def test_no_name_of_a_run_commands_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "runs" / "evil\x1b[2J\u202e[red]").mkdir(parents=True)

    async def steps(seen: Seen) -> None:
        shown = [await seen.until("> evil.*failed")]
        for key in ("enter", *"234567", "escape", "c"):
            await seen.keys(key)
            shown.append(await seen.until("evil"))
        for text in shown:
            assert "[red]" in text
            assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)

    drive(tmp_path, steps)


@pytest.mark.parametrize(
    ("terminal", "term", "found", "words"),
    [
        (False, "xterm", True, "orch status"),
        (True, "dumb", True, "orch status"),
        (True, "xterm", False, "'orchrun[ui]'"),
    ],
)
def test_it_is_refused_in_a_sentence_where_it_can_not_be_drawn(
    terminal: bool,
    term: str,
    found: bool,
    words: str,
    in_process: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = "orchestrator.cli.commands.lifecycle.top"
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(f"{command}.has_terminal", lambda: terminal)
    monkeypatch.setattr(f"{command}.find_spec", lambda _name: object() if found else None)
    refused = in_process("top")
    assert (refused.code, refused.out) == (2, "")
    assert words in refused.err

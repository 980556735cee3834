"""Makes the pictures of docs/ui from a state folder of invented runs: `python -m tests.pictures`.

With `--all FOLDER` it makes a picture of every view in four widths and both colour schemes, for somebody who looks at
them. A live run writes its heartbeats, metrics and samples while the pictures are made.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Page, expect, sync_playwright

from orchestrator.outcome.verdict import Cause, Outcome, Verdict
from orchestrator.protocol.events import RankExit, Started
from orchestrator.protocol.layout import samples_file
from orchestrator.protocol.samples import GpuSample, RankSample, Sample
from orchestrator.runs.files.metrics import metrics_of
from orchestrator.runs.labels import change_tags, set_note
from orchestrator.runs.store import RunDir, create_run, retire
from orchestrator.web import files
from orchestrator.web.server import new_code
from tests.unit.views.runs_made import tell

CHROMIUM: Final = "/usr/bin/chromium"
DOCS: Final = Path(__file__).parents[1] / "docs" / "ui"
LIVE, LARGE, FAILED, SWEEP = "llama-q9k3x2", "pretrain-b7k2qd", "gpt-k3m8pq", "grid-k3x9qz"
BASE, OTHER = "vit-j9cuee", "vit-e6w7s6"
TABS: Final = ("overview", "curves", "ranks", "system", "logs", "files", "config", "why")
WIDTHS: Final = (390, 768, 1400, 2560)
GIB: Final = float(1 << 30)
SUCCEEDED: Final = Verdict(Outcome.SUCCEEDED)


@dataclass(frozen=True)
class Shape:
    """The size of a run, and which of its ranks waits for its loader."""

    nodes: int
    on_node: int
    slow: int | None = None
    seconds: float = 0.4  # a step
    memory: float = 21 * GIB  # of a GPU

    @property
    def ranks(self) -> int:
        return self.nodes * self.on_node


def begun(root: Path, run_id: str, shape: Shape, created: float, job: dict[str, Any], **record: Any) -> RunDir:
    """Create a run whose agents have joined and whose ranks run."""
    name = run_id.partition("-")[0]
    hosts = [f"n{node + 1}" for node in range(shape.nodes)]
    job = {"name": name, "script": "train.py", **job}
    run = create_run(
        root,
        run_id,
        {
            "run_id": run_id,
            "name": name,
            "kind": "local",
            "nnodes": shape.nodes,
            "hosts": hosts,
            "profile_name": "lab",
            "created": created,
            "job": job,
            **record,
        },
    )
    run.write("plan.json", {"job": job, "tasks": [{}]})
    commit = {"files": 12, "bytes": 40_000, "git": "4f1c2d9a7b", "dirty": False}
    lines = [{"kind": "snapshot", "time": created + 0.1, **commit}, {"kind": "submitted", "time": created + 0.4}]
    (run.path / "events.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for node, host in enumerate(hosts):
        names = ["A100"] * shape.on_node
        tell(run, node, "agent_started", created + 2, host=host, pid=1, gpus=shape.on_node, cores=64, gpu_names=names)
    for node in range(shape.nodes):
        tell(run, 0, "joined", created + 3 + 0.1 * node, joined=node)
    start(run, shape, created + 9)
    return run


def start(run: RunDir, shape: Shape, at: float, attempt: int = 0, **more: Any) -> None:
    """Start the ranks of an attempt."""
    tell(run, 0, "go", at, attempt=attempt, world_size=shape.ranks, **more)
    for node in range(shape.nodes):
        (run.node(node) / f"attempt_{attempt}").mkdir(parents=True, exist_ok=True)
        tell(run, node, "started", at, ranks=[node * shape.on_node, (node + 1) * shape.on_node], attempt=attempt)


def end(run: RunDir, verdict: Verdict, at: float, result: dict[str, Any] | None = None) -> None:
    """End the agents, and before them the ranks that have not ended."""
    code, signal = (0, None) if verdict.outcome is Outcome.SUCCEEDED else (None, "SIGTERM")
    events = run.events()
    started = [event for event in events if isinstance(event, Started) and event.attempt == verdict.attempt]
    for each in started:
        gone = {event.rank for event in events if isinstance(event, RankExit) and event.attempt == each.attempt}
        for rank in sorted({*range(*each.ranks)} - gone):
            tell(run, each.node or 0, "rank_exit", at - 1, rank=rank, code=code, signal=signal, attempt=each.attempt)
    for node in sorted(run.path.glob("nodes/*")):
        tell(run, int(node.name), "agent_ended", at, outcome=verdict.outcome.value)
    if result is not None:
        run.write("result.json", result)
    run.write("verdict.json", {**verdict.to_json(), "ended": at})
    retire(run.root, run)


class Course:
    """The metrics of a run: a loss that falls, an accuracy that rises, and noise."""

    def __init__(self, seed: int, total: int, low: float = 0.3, pace: float = 4.0, lr: float = 0.1) -> None:
        self.random, self.total, self.low, self.pace, self.lr = random.Random(seed), total, low, pace, lr

    def lines(self, step: int, at: float, attempt: int = 0) -> Iterator[dict[str, Any]]:
        share = step / self.total
        loss = self.low + 2.0 * math.exp(-self.pace * share) + self.random.gauss(0, 0.05)
        of_train = {
            "loss": max(0.05, loss),
            "lr": self.lr * (1 + math.cos(math.pi * share)) / 2,
            "grad_norm": 1 + 0.4 * share + self.random.gauss(0, 0.05),
            "epoch": step * 10 // self.total,
        }
        yield {"kind": "train", "step": step, "time": at, "attempt": attempt, **of_train}
        if step % max(1, self.total // 20) == 0:
            accuracy = 0.1 + 0.82 * (1 - math.exp(-self.pace * share)) - 0.1 * self.low + self.random.gauss(0, 0.002)
            measured = {"accuracy": accuracy, "loss": loss * 1.05}
            yield {"kind": "eval", "step": step, "time": at, "attempt": attempt, **measured}


def write_metrics(
    run: RunDir, course: Course, steps: range, since: float, seconds: float, attempt: int = 0
) -> dict[str, float]:
    """Write the metrics of these steps. Return the newest accuracy and training loss, of which a result consists."""
    with open(run.path / "metrics.jsonl", "a") as file:
        for step in steps:
            for line in course.lines(step, since + seconds * step, attempt):
                file.write(json.dumps(line) + "\n")
    newest = metrics_of(run)
    return {name: round(newest[name], 4) for name in ("accuracy", "loss")}


def sample(shape: Shape, node: int, at: float, step: int, noise: random.Random, seconds: float = 2.0) -> Sample:
    ranks, gpus = [], []
    for number in range(shape.on_node):
        rank = node * shape.on_node + number
        is_slow = rank == shape.slow
        took = shape.seconds * noise.uniform(0.97, 1.05) * (1.6 if is_slow else 1)
        ranks.append(
            RankSample(
                rank,
                cpu=0.9 + noise.uniform(0, 0.1),
                memory=(6 + noise.random()) * GIB,
                read=(40e6 if is_slow else 9e6),
                written=1e6,
                phase="train",
                step=step,
                waited=0.62 if is_slow else 0.04,
                step_seconds=took,
            )
        )
        gpus.append(
            GpuSample(
                number,
                use=(52 if is_slow else 95) + noise.uniform(-3, 3),
                memory=shape.memory,
                memory_total=40 * GIB,
                power=(180 if is_slow else 310) + noise.uniform(-9, 9),
                temperature=66.0,
            )
        )
    return Sample(
        time=at,
        seconds=seconds,
        cpu=shape.on_node * 1.1,
        cores=64,
        memory=90 * GIB,
        memory_total=256 * GIB,
        read=5e7,
        written=4e6,
        received=2e8,
        sent=2e8,
        ranks=tuple(ranks),
        gpus=tuple(gpus),
    )


def write_samples(run: RunDir, shape: Shape, times: list[float], until_step: int) -> None:
    noise = random.Random(run.run_id)
    for node in range(shape.nodes):
        lines = [
            sample(shape, node, at, until_step * place // len(times), noise, times[1] - times[0])
            for place, at in enumerate(times, 1)
        ]
        Path(samples_file(str(run.node(node)))).write_text("".join(f"{json.dumps(line.to_json())}\n" for line in lines))


def write_beats(run: RunDir, shape: Shape, step: int, total: int, loss: float, attempt: int = 0) -> None:
    for rank in range(shape.ranks):
        left = (total - step) * shape.seconds
        beat = {
            "step": step,
            "total": total,
            "phase": "train",
            "time": time.time(),
            "loss": loss,
            "rate": 5210.0,
            "eta": left,
        }
        path = run.node(rank // shape.on_node) / f"attempt_{attempt}" / f"beat_{rank}"
        path.write_text(json.dumps(beat).ljust(511) + "\n")


def write_log(run: RunDir, node: int, attempt: int, rank: int, lines: list[str]) -> None:
    (run.node(node) / f"attempt_{attempt}" / f"rank_{rank}.log").write_text("\n".join(lines) + "\n")


# -- the runs


class LiveRun:
    """A run that goes on: `step` writes what its ranks would write meanwhile."""

    def __init__(self, root: Path, now: float) -> None:
        self.shape, self.total, self.done, self.noise = Shape(2, 4, slow=3), 1250, 716, random.Random(3)
        args = ["--lr", "3e-4", "--optimizer", "adamw", "--layers", "24"]
        self.run = begun(root, LIVE, self.shape, now - 300, {"args": args, "description": "a language model"})
        self.course = Course(1, self.total, low=0.35, lr=3e-4)
        write_metrics(self.run, self.course, range(self.done), now - 0.4 * self.done, 0.4)
        write_samples(self.run, self.shape, [now - 2.0 * each for each in range(140, 0, -1)], self.done)
        for rank in range(self.shape.ranks):
            lines = [
                f"step {step}  loss {0.35 + 2 * math.exp(-4 * step / self.total):.4f}"
                for step in range(0, self.done, 5)
            ]
            write_log(self.run, rank // 4, 0, rank, lines)
        change_tags(self.run, ["7b", "long-context"])
        self.step()

    def step(self) -> None:
        self.done += 3
        write_metrics(self.run, self.course, range(self.done - 3, self.done), time.time() - 0.4 * self.done, 0.4)
        write_beats(self.run, self.shape, self.done, self.total, 0.35 + 2 * math.exp(-4 * self.done / self.total))
        for node in range(self.shape.nodes):
            with open(samples_file(str(self.run.node(node))), "a") as file:
                file.write(json.dumps(sample(self.shape, node, time.time(), self.done, self.noise).to_json()) + "\n")


@contextmanager
def going_on(live: LiveRun) -> Iterator[None]:
    over = threading.Event()

    def steps() -> None:
        while not over.wait(1.2):
            live.step()

    thread = threading.Thread(target=steps)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def failed_run(root: Path, now: float) -> None:
    """A run that was restarted once from a checkpoint, and failed for good on its second node."""
    shape, began = Shape(2, 4, slow=None, seconds=0.38), now - 5400
    run = begun(root, FAILED, shape, began, {"args": ["--lr", "1e-3", "--batch-size", "96"]})
    course = Course(5, 5000, low=1.9)
    write_metrics(run, course, range(0, 812, 4), began + 9, 0.38)
    write_metrics(run, course, range(600, 1552, 4), began + 340 - 0.38 * 600, 0.38, 1)
    culprit = {"rank": 2, "node": 0, "host": "n1", "code": None, "signal": "SIGKILL"}
    tell(
        run,
        0,
        "attempt_failed",
        began + 310,
        attempt=0,
        culprit=culprit,
        cause="infra",
    )
    tell(run, 0, "restart", began + 320, attempt=1, cause="infra", from_step=600)
    start(run, shape, began + 330, 1, resume_from="step_600")
    tell(run, 0, "first_steps", began + 340, attempt=1, offered_step=600, loaded=600)
    write_samples(run, shape, [began + 340 + 10.0 * each for each in range(37)], 1552)
    write_beats(run, shape, 1552, 5000, 2.114, 1)
    trace = (
        'Traceback (most recent call last):\n  File "train.py", line 88, in <module>\n    loss = model(batch)\n'
        '  File "train.py", line 31, in forward\n    return F.cross_entropy(logits, labels)\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.20 GiB. GPU 1 has 39.4 GiB, 1.1 GiB of it free"
    )
    write_log(run, 1, 1, 5, [f"step {step}  loss 2.1" for step in range(1400, 1552)] + trace.splitlines())
    for rank in (0, 2):
        write_log(run, 0, 0, rank, ["step 600  loss 2.4"])
    said = "exit code 1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.20 GiB"
    tell(run, 1, "rank_exit", began + 702, rank=5, code=1, attempt=1)
    for rank in (0, 1, 2, 3, 4, 6, 7):
        tell(run, rank // 4, "rank_exit", began + 703, rank=rank, code=None, signal="SIGTERM", attempt=1)
    error = {"type": "torch.OutOfMemoryError", "message": "CUDA out of memory", "traceback": trace}
    hint = "the batch does not fit the GPU: use a smaller batch size, or gradient accumulation"
    end(
        run,
        Verdict(
            Outcome.FAILED,
            Cause.USER_ERROR,
            f"rank 5 on node 1 (n2) ended with {said}",
            1,
            5,
            1,
            "n2",
            1,
            error=error,
            hint=hint,
        ),
        began + 705,
    )


def large_run(root: Path, now: float) -> None:
    """A run of 64 ranks on eight nodes that has succeeded."""
    shape, began = Shape(8, 8, slow=37, seconds=0.42), now - 9000
    run = begun(root, LARGE, shape, began, {"args": ["--lr", "6e-4"]})
    result = write_metrics(run, Course(9, 7000, low=0.3), range(0, 7000, 7), began, 0.42)
    write_samples(run, shape, [began + 60.0 * each for each in range(1, 50)], 7000)
    outputs = run.path / "outputs"
    (outputs / "plots").mkdir(parents=True)
    (outputs / "summary.json").write_text(json.dumps({"loss": result["loss"], "tokens": 1.2e9}))
    (outputs / "losses.csv").write_text("step,loss\n" + "".join(f"{step},{2 / (step + 1):.4f}\n" for step in range(90)))
    bars = "".join(
        f'<rect x="{9 * at}" y="{60 - each}" width="7" height="{each}"/>'
        for at, each in enumerate((50, 38, 30, 24, 20, 18))
    )
    (outputs / "plots" / "loss.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="240" height="200" viewBox="0 0 60 60">{bars}</svg>'
    )
    write_log(
        run, 0, 0, 0, [f"step {step}  loss {0.3 + 2 * math.exp(-step / 2000):.4f}" for step in range(0, 7000, 50)]
    )
    end(run, SUCCEEDED, began + 3000, {**result, "step": 7000})


def small_runs(root: Path, now: float) -> None:
    """A sweep, two runs that differ in their settings, and runs in other states."""
    for index in range(16):
        lr, optimizer, seed = (1e-4, 1e-3, 1e-2, 0.1)[index % 4], ("adamw", "sgd")[index // 4 % 2], index // 8
        values = {"lr": str(lr), "seed": str(seed), "optimizer": optimizer}
        point = {"id": SWEEP, "index": index, "values": values, "parallel": 2}
        shape, began = Shape(1, 2), now - 4000 + 90 * index
        run = begun(
            root, f"{SWEEP}.{index}", shape, began, {"metric": {"name": "accuracy", "better": "higher"}}, sweep=point
        )
        low = abs(math.log10(lr) + 2) * 0.5 + (0.3 if optimizer == "sgd" else 0.1)
        course = Course(20 + index, 300, low=low, lr=lr)
        end(run, SUCCEEDED, began + 90, write_metrics(run, course, range(301), began + 9, 0.25))
    for run_id, lr, batch, memory in ((BASE, 0.1, 256, 31 * GIB), (OTHER, 0.04, 128, 18 * GIB)):
        shape, began = Shape(1, 4, memory=memory), now - 20_000
        run = begun(root, run_id, shape, began, {"args": [f"--lr={lr}", f"--batch-size={batch}", "--model", "vit-b16"]})
        result = write_metrics(
            run,
            Course(40 + batch, 360, low=0.3 + 2 * (0.1 - lr), lr=lr, pace=3.0),
            range(301 if batch == 256 else 361),
            began + 9,
            2.0,
        )
        write_samples(run, shape, [began + 10.0 * each for each in range(60)], 300)
        end(run, SUCCEEDED, began + 740, result)
    change_tags(RunDir(root / "runs" / BASE), ["baseline"])
    set_note(RunDir(root / "runs" / BASE), "the paper's settings")
    cancelled = begun(root, "vit-c4nc3l", Shape(1, 4), now - 30_000, {"args": ["--lr=1.0"]})
    end(cancelled, Verdict(Outcome.CANCELLED, reason="cancelled by the user"), now - 29_000)
    create_run(
        root,
        "llama-w41t1n",
        {
            "run_id": "llama-w41t1n",
            "name": "llama",
            "kind": "local",
            "nnodes": 2,
            "hosts": ["n1", "n2"],
            "profile_name": "lab",
            "created": now - 60,
            "job": {"name": "llama", "script": "train.py"},
        },
    )


def many_runs(root: Path, count: int, now: float) -> None:
    """Runs that have ended, with nothing but their record and their end."""
    for number in range(count):
        began = now - 90_000 - 60 * number
        record = {
            "name": f"train{number % 40}",
            "kind": "local",
            "nnodes": 1,
            "hosts": ["n1"],
            "profile_name": "lab",
            "created": began,
            "job": {"args": ["--lr", str(10.0 ** -(number % 4))]},
        }
        run = create_run(root, f"train{number % 40}-{number:06}", record)
        run.write("result.json", {"loss": 0.3 + (number % 17) / 17})
        run.write("verdict.json", {**SUCCEEDED.to_json(), "ended": began + 50})
        retire(root, run)


# -- the pictures


class Camera:
    """One page of Chromium that goes to places and takes pictures."""

    def __init__(self, page: Page, folder: Path) -> None:
        self.page, self.folder = page, folder

    def take(
        self,
        name: str,
        place: str,
        size: tuple[int, int],
        scheme: str = "light",
        do: Callable[[Page], object] | None = None,
    ) -> None:
        self.page.set_viewport_size({"width": size[0], "height": size[1]})
        self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        self.page.goto(f"{self.page.url.partition('#')[0]}#{place}")
        _, view, *words = place.partition("?")[0].split("/")
        expect(self.page.locator(f"#main[data-shown={view or 'runs'}]")).to_be_attached()
        if view == "run" and words[1:]:
            expect(self.page.locator("h1")).to_contain_text(words[0])
            expect(self.page.locator(f".tab[data-tab={words[1]}]")).to_be_attached()
        expect(self.page.get_by_text("Loading …")).to_have_count(0)
        self.page.wait_for_timeout(1200)  # until the charts of the view are drawn
        if do is not None:
            do(self.page)
            self.page.wait_for_timeout(400)
        self.page.screenshot(path=self.folder / f"{name}.png")


def of_docs(camera: Camera) -> None:
    both = f"/curves?run={BASE}&run={OTHER}&baseline={BASE}&smooth=0.8&columns=2"

    def point(page: Page) -> None:
        page.get_by_role("region", name="loss", exact=True).locator(".u-over").hover(position={"x": 250, "y": 80})

    camera.take("run-light", f"/run/{LIVE}/overview", (1200, 640))
    camera.take("runs-dark", "/", (1200, 700), "dark")
    camera.take("runs-phone", "/", (390, 800))
    camera.take("run-phone", f"/run/{LIVE}/overview", (390, 800))
    camera.take("why-light", f"/run/{FAILED}/why", (1200, 640))
    camera.take("curves-light", both, (1200, 820), do=point)
    camera.take("diff-light", f"/compare?run={BASE}&run={OTHER}", (1200, 560))
    camera.take("ranks-light", f"/run/{LARGE}/ranks", (1200, 800))
    camera.take("use-light", f"/run/{LARGE}/system", (1200, 760))
    camera.take("use-dark", f"/run/{LARGE}/system", (1200, 760), "dark")
    camera.take("sweep-light", f"/sweep/{SWEEP}", (1200, 1000))


def of_all(camera: Camera, only: str) -> None:
    pair, three = (
        f"/compare?{'&'.join(f'run={each}' for each in those)}" for those in ((BASE, OTHER), (BASE, OTHER, LARGE))
    )
    views = {
        "runs": "/",
        "grouped": "/?group=name",
        "nothing": "/?filter=nothing",
        "sweep": f"/sweep/{SWEEP}",
        "pair": pair,
        "three": three,
        "curves": f"/curves?run={BASE}&run={OTHER}",
        "diff": f"/diff/{BASE}/{OTHER}",
        "unknown": "/run/none",
    }
    views |= {
        f"{name}-{tab}": f"/run/{run}/{tab}"
        for name, run in (("live", LIVE), ("failed", FAILED), ("large", LARGE), ("waiting", "llama-w41t1n"))
        for tab in TABS
    }
    for name, place in views.items():
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                if only in f"{name}-{width}-{scheme}":
                    camera.take(f"{name}-{width}-{scheme}", place, (width, 1600 if width == 390 else 1000), scheme)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", type=Path, help="make pictures of all views in this folder")
    parser.add_argument("--only", default="", help="of all views, only those with this text in their name")
    parser.add_argument("--many", type=int, default=0, help="so many more runs")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="orch-") as home:
        root, now = Path(home, ".local", "state", "orch"), time.time()
        root.mkdir(parents=True, mode=0o700)
        many_runs(root, asked.many, now)
        small_runs(root, now)
        large_run(root, now)
        failed_run(root, now)
        live = LiveRun(root, now)
        orch = [sys.executable, "-m", "orchestrator.cli", "ui"]
        environment = {**os.environ, "HOME": home, "ORCH_HOME": str(root)}
        subprocess.run([*orch, "--detach", "--no-open"], env=environment, check=True, capture_output=True)
        try:
            with going_on(live), sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
                page = browser.new_page()
                page.on("pageerror", lambda error: print(error, file=sys.stderr))
                page.on("console", lambda said: print(said.text, file=sys.stderr) if said.type == "error" else None)
                found = files.server_of(root)
                assert found is not None
                page.goto(files.write_opening(root, files.address_of(found[0], new_code(found[0]))).as_uri())
                expect(page.get_by_text("runs", exact=False).first).to_be_visible()
                page.wait_for_url("**/")
                if asked.all is None:
                    of_docs(Camera(page, DOCS))
                else:
                    asked.all.mkdir(parents=True, exist_ok=True)
                    of_all(Camera(page, asked.all), asked.only)
                browser.close()
        finally:
            subprocess.run([*orch, "--stop"], env=environment, check=True, capture_output=True)


if __name__ == "__main__":
    main()

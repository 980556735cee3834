"""What `orch top` and the page draw, timed: 2,000 runs, a run of 1,000 ranks, a curve of 20,000 steps, a log of 1 GB.

The folders are written by the store's own functions; a view is drawn the first time, and again after a change.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from pairs import Load, print_row, say

from orchestrator.cli.render.runs import note
from orchestrator.outcome.verdict import Outcome, Verdict
from orchestrator.protocol.events import Submitted
from orchestrator.protocol.samples import RankSample, Sample
from orchestrator.runs.run_id import new_run_id
from orchestrator.runs.store import RunDir, create_run, retire
from orchestrator.views.json_types import to_json
from orchestrator.views.reader import Reader

RUNS, RANKS, ON_NODE, STEPS, LINES = 2_000, 1_000, 8, 20_000, 160
LOG_BYTES = 1 << 30
ROUNDS = 20


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as folder:
        root, load = Path(folder), Load()
        live = filled(root)
        runs = Reader(root, note)
        show("the list of 2,000 runs", 200, [timed(lambda: to_json(runs.runs()))], load)
        looks = 1
        while runs.runs().unread:
            looks += 1
        say(f"all runs had been read after {looks + 1} looks")
        show("the list of 2,000 runs, again", 50, rounds(lambda: to_json(runs.runs()), live), load)
        drawn = [timed(lambda: to_json(Reader(root, note).run(live))) for _ in range(ROUNDS)]
        show("a run of 1,000 ranks", 200, drawn, load)
        one = Reader(root, note)
        show("a run of 1,000 ranks, again", 50, rounds(lambda: one.run(live), live), load)
        show("the same, as JSON", 50, rounds(lambda: to_json(one.run(live)), live), load)
        show("its step times, 200 columns", 50, rounds(lambda: one.step_time_map(live, columns=200, rows=100)), load)
        show("how busy its ranks are, 120 columns", 50, rounds(lambda: one.use(live, columns=120, rows=100)), load)
        show("a curve of 20,000 steps", 200, [timed(lambda: one.curves([live], "loss"))], load)
        show("a curve of 20,000 steps, again", 50, rounds(lambda: one.curves([live], "loss", smoothing=0.6)), load)
        show("the end of a log of 1 GB", 50, rounds(lambda: one.log(live).last(100)), load)
        show("64 MB of it searched", 200, rounds(lambda: one.log(live).find("not there", 0)), load)


def timed(look: Callable[[], object]) -> float:
    """Return the milliseconds that a look takes."""
    begun = time.perf_counter()
    look()
    return 1000 * (time.perf_counter() - begun)


def rounds(look: Callable[[], object], changing: RunDir | None = None) -> list[float]:
    """Return the times of several looks; before each, the ranks of a run have made a step."""
    times = []
    for number in range(ROUNDS):
        if changing is not None:
            write_beats(changing, number + 2)
        times.append(timed(look))
    return times


def show(what: str, target: float, times: list[float], load: Load, unit: str = "ms") -> None:
    middle = median(times)
    said = f"{middle:.1f} {unit} ({min(times):.1f}-{max(times):.1f})"
    verdict = "met" if middle <= target else "missed"
    print_row(what, "-", f"≤ {target} {unit}", "-", str(len(times)), said, verdict, str(load))


def filled(root: Path) -> RunDir:
    """Fill a state folder with runs that have ended; return the one that goes on."""
    say(f"writing {RUNS} runs, and one of {RANKS} ranks")
    for number in range(RUNS):
        past_run(root, number)
    return live_run(root)


def past_run(root: Path, number: int) -> None:
    """A run of two nodes that has ended, with the events that such a run has."""
    run_id = new_run_id(f"train{number % 40}")
    hosts = ["n1", "n2"]
    job = {
        "script": "train.py",
        "args": ["--epochs", "3", "--lr", "0.1"],
        "env": {f"VAR{n}": "x" * 40 for n in range(9)},
    }
    run = create_run(root, run_id, {"run_id": run_id, "name": f"train{number % 40}", "kind": "local", "nnodes": 2,
                                    "hosts": hosts, "profile_name": "lab", "created": 1e9 + number, "job": job,
                                    "profile": {"kind": "local"}})  # fmt: skip
    run.append_event(Submitted())
    for node in (0, 1):
        write_node(run, node, 4)
    run.write("verdict.json", {**Verdict(Outcome.SUCCEEDED).to_json(), "ended": 1e9 + number + 60})
    retire(root, run)


def write_node(run: RunDir, node: int, ranks: int) -> None:
    first = node * ranks
    events = [
        {"kind": "agent_started", "host": f"n{node}", "pid": 1, "gpus": 0, "cores": 8},
        {"kind": "launcher_imported", "torch": "2.13", "seconds": 1.5},
        *({"kind": "joined", "joined": each} for each in range(run.record().nnodes) if node == 0),
        {"kind": "go", "attempt": 0, "world_size": ranks * run.record().nnodes},
        {"kind": "started", "ranks": [first, first + ranks], "attempt": 0, "master_addr": "n0", "master_port": 4242},
    ]
    run.node(node).mkdir()
    lines = [json.dumps({**event, "node": node, "time": time.time(), "mono": time.monotonic()}) for event in events]
    (run.node(node) / "events.jsonl").write_text("\n".join(lines) + "\n")


def write_samples(run: RunDir, node: int) -> None:
    """The samples of its last hours, a line a minute, with all of its ranks."""
    ranks = [
        RankSample(node * ON_NODE + rank, cpu=1.0, memory=1e9, phase="train", step=9, step_seconds=0.1)
        for rank in range(ON_NODE)
    ]
    begun = time.time() - 60.0 * LINES
    lines = [Sample(begun + 60.0 * line, 60.0, cores=8, cpu=8.0, ranks=tuple(ranks)).to_json() for line in range(LINES)]
    (run.node(node) / "samples.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def live_run(root: Path) -> RunDir:
    """A run of 1,000 ranks that goes on, with its beats, its metrics and a large log."""
    run_id, nodes = new_run_id("large"), RANKS // ON_NODE
    hosts = [f"n{node}" for node in range(nodes)]
    record = {"run_id": run_id, "name": "large", "kind": "local", "nnodes": nodes, "hosts": hosts}
    run = create_run(root, run_id, {**record, "profile_name": "lab", "created": time.time(), "job": {}, "profile": {}})
    run.append_event(Submitted())
    for node in range(nodes):
        write_node(run, node, ON_NODE)
        (run.node(node) / "attempt_0").mkdir()
        write_samples(run, node)
    write_beats(run, 1)
    with open(run.path / "metrics.jsonl", "w") as file:
        for step in range(STEPS):
            file.write(json.dumps({"kind": "train", "step": step, "loss": 1 / (step + 1), "rate": 5000.0, "lr": 0.1,
                                   "attempt": 0, "time": 1e9 + step}) + "\n")  # fmt: skip
    line = b"step 1234  epoch 3  loss 0.1234  5,210 samples/s  ETA 1 min 02 s\n"
    with open(run.node(0) / "attempt_0" / "rank_0.log", "wb") as log:
        while log.tell() < LOG_BYTES:
            log.write(line * 10_000)
    return run


def write_beats(run: RunDir, step: int) -> None:
    beat = {"step": step, "total": STEPS, "phase": "train", "time": step * 0.1, "loss": 0.5, "rate": 5e3}
    for rank in range(RANKS):
        path = run.node(rank // ON_NODE) / "attempt_0" / f"beat_{rank}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.pwrite(descriptor, json.dumps(beat).encode().ljust(511) + b"\n", 0)
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())

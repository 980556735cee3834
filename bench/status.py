"""`orch status` against `torchx --help`, and with 10,000 past runs against an empty store: time of the process."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from launches import OrchLaunch, ended, timed_run, workplace
from pairs import ROOT, Load, Target, how_many, interleave, print_pairs, print_row, program, say

from orchestrator.runs.run_id import new_run_id
from orchestrator.runs.store import RunDir, create_run, retire

PAST = 10_000
TORCHX = Path(os.environ.get("BENCH_TORCHX") or ROOT / ".venv-bench" / "bin" / "torchx")


def fill(folder: Path, pattern: RunDir, count: int) -> Path:
    """A store of past runs, made by the store's own functions, each a copy of a run that was really made."""
    root = folder / f"past-{count}"
    record, plan = pattern.read("run.json") or {}, pattern.read("plan.json") or {}
    verdict, events = pattern.read("verdict.json") or {}, pattern.events()
    for _ in range(count):
        run_id = new_run_id("bench")
        run = create_run(root, run_id, {**record, "run_id": run_id})
        run.write("plan.json", plan)
        for event in events:
            run.append_event(event)
        run.write("verdict.json", verdict)
        retire(root, run)
    return root


def main() -> None:
    load, count = Load(), how_many(30)
    with workplace() as folder, tempfile.TemporaryDirectory() as empty:
        job = {"command": [sys.executable, "-c", "print('hello')"]}
        with ended(OrchLaunch(folder, job, 1, 1)) as launch:
            launch.wait()
        say(f"writing {PAST} past runs")
        few, many = fill(folder, RunDir(launch.run_folder), 20), fill(folder, RunDir(launch.run_folder), PAST)

        def status(home: Path) -> float:
            return timed_run([program("orch"), "status"], {**os.environ, "ORCH_HOME": str(home)})

        what = "`orch status` with 20 past runs"
        if TORCHX.exists():
            pairs = interleave(lambda: status(few), lambda: timed_run([str(TORCHX), "--help"], {**os.environ}), count)
            print_pairs(what, "`torchx --help`", Target(0.8), pairs, pairs.medians("s", 3), load)
        else:
            print_row(what, "`torchx --help`", "≤ 0.8x", "not measured", "0", "-", f"no {TORCHX.name}", str(load))
        load = Load()
        pairs = interleave(lambda: status(many), lambda: status(Path(empty)), count)
    print_pairs(
        f"`orch status` with {PAST:,} past runs", "an empty store", Target(1.1), pairs, pairs.medians("s", 3), load
    )


if __name__ == "__main__":
    main()

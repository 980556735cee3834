"""The MNIST recipe: the shared entrypoint under orch against a plain DistributedDataParallel script under torchrun.

MNIST_DIR names the folder with MNIST's four files, plain or packed; without it nothing is measured.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import statistics
from pathlib import Path
from typing import Any

from launches import Launch, OrchLaunch, TorchrunLaunch, ended, one_node, workplace
from pairs import ROOT, Load, Pairs, Target, how_many, print_pairs, print_row, say
from taking_turns import environment, rounds

from orchestrator.training.data.samples import MNIST_FILES

NPROC, GLOBAL_BATCH = 2, 64
TURNS, STEPS = 7, 30
WORKERS = (0, 2)
WHAT = "MNIST samples a second, 2 ranks, global batch 64"
AGAINST = "plain DDP script with `DataLoader`, under `torchrun`"


def unpack(source: Path, target: Path) -> None:
    """The four files where torchvision looks for them."""
    raw = target / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in MNIST_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, raw / name)
        else:
            with gzip.open(source / f"{name}.gz") as packed, (raw / name).open("wb") as plain:
                shutil.copyfileobj(packed, plain)


def job(folder: Path, task: str, precision: str, **length: int) -> dict[str, Any]:
    """The shipped task's recipe; a line of metrics every ten steps, as the plain script prints one."""
    training = {"task": task, "global_batch": GLOBAL_BATCH, "data": str(folder / "data"), "log_every": 10}
    return {"training": {**training, **length, "precision": precision}, "checkpoint": {"resume": "never"}}


def speeds(folder: Path) -> list[list[float]]:
    """Steps a second, for each round: orch in float32 and in bfloat16, then the plain script with each of WORKERS."""
    env, steps = environment(TURNS, STEPS), TURNS * STEPS + 1
    words = ["--data", str(folder / "data"), "--steps", str(steps), "--global-batch", str(GLOBAL_BATCH)]
    with contextlib.ExitStack() as stack:
        launches: list[Launch] = []
        for precision in ("fp32", "bf16"):
            recipe = job(folder, "mnist_turns.py", precision, steps=steps)
            launches.append(stack.enter_context(ended(OrchLaunch(folder, recipe, 1, NPROC, **env))))
        for workers in WORKERS:
            more = [*words, "--workers", str(workers)]
            plain = TorchrunLaunch(folder, "plain_mnist.py", one_node(NPROC), *more, **env)
            launches.append(stack.enter_context(ended(plain)))
        return rounds(launches, TURNS)


def epoch(folder: Path, precision: str) -> dict[str, Any]:
    """The result of one epoch over the whole of MNIST."""
    with ended(OrchLaunch(folder, job(folder, "mnist.py", precision, epochs=1), 1, NPROC)) as launch:
        launch.wait(400)
        found: dict[str, Any] = json.loads(next(launch.run_folder.rglob("result.json")).read_text())
        return found


def main() -> None:
    load, count = Load(), how_many(3)
    source = os.environ.get("MNIST_DIR")
    if not source:
        print_row(WHAT, AGAINST, "≥ 1.1x", "not measured", "0", "-", "MNIST_DIR is not set", str(load))
        return
    with workplace() as folder:
        unpack(Path(source), folder / "data")
        shutil.copyfile(ROOT / "jobs" / "mnist.py", folder / "code" / "mnist.py")
        found: list[list[float]] = []
        for number in range(1, count + 1):
            found += speeds(folder)
            middles = [GLOBAL_BATCH * statistics.median(side) for side in zip(*found, strict=True)]
            say(f"launch {number} of {count}: {', '.join(f'{middle:.0f}/s' for middle in middles)}")
        full, half, *plain = ([GLOBAL_BATCH * rate for rate in side] for side in zip(*found, strict=True))
        best = max(plain, key=statistics.median)
        tried = [f"{statistics.median(side):.0f}/s with {n} workers" for n, side in zip(WORKERS, plain, strict=True)]
        note = f"the plain script at its best ({', '.join(tried)}); {count} launches a side, {TURNS - 1} turns each"
        for what, ours, limit, more in (
            (WHAT, full, 1.1, note),
            ("the same with `precision: bf16`", half, 1.6, "the plain script stays in float32"),
        ):
            pairs = Pairs([*ours], [*best])
            print_pairs(what, AGAINST, Target(limit, at_least=True), pairs, pairs.medians("/s", 0), load, more)
        load = Load()
        whole, rounded = epoch(folder, "fp32"), epoch(folder, "bf16")
    reached, other = (100 * result["accuracy"] for result in (whole, rounded))
    shown = f"{reached:.2f} % on {whole['test_samples']:,} test images"
    note = f"{'met' if reached >= 98 else '**falls short**'}; one run, {whole['seconds']:.0f} s"
    print_row("one epoch of MNIST, accuracy", "-", "≥ 98 %", shown, "-", "-", note, str(load))
    shown = f"{other:.2f} %, {other - reached:+.2f} points"
    note = f"{'met' if abs(other - reached) <= 0.3 else '**falls short**'}; one run, {rounded['seconds']:.0f} s"
    print_row("the same with `precision: bf16`", "float32", "within 0.3 points", shown, "-", "-", note, str(load))


if __name__ == "__main__":
    main()

"""The MNIST recipe: the shared entrypoint under orch against a plain DistributedDataParallel script under torchrun.

MNIST_DIR names the folder with MNIST's four files, plain or packed; without it nothing is measured.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

from launches import OrchLaunch, TorchrunLaunch, ended, one_node, workplace
from pairs import ROOT, Load, Pairs, Target, how_many, print_pairs, print_row, say

from orchestrator.training.data import MNIST_FILES

NPROC, GLOBAL_BATCH = 2, 64
WARM_UP, STEPS = 20, 200
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


def job(folder: Path, precision: str, **length: int) -> dict[str, Any]:
    """The shipped task; a line of metrics every ten steps, as the plain script prints one."""
    training = {"task": "mnist.py", "global_batch": GLOBAL_BATCH, "data": str(folder / "data"), "log_every": 10}
    return {"training": {**training, **length, "precision": precision}, "checkpoint": {"resume": "never"}}


def rate_of_metrics(run_folder: Path) -> float:
    """Samples a second between the warm-up and the last step, from rank 0's metrics."""
    found = next(iter(run_folder.rglob("metrics.jsonl")))
    lines = [json.loads(line) for line in found.read_text().splitlines()]
    times = {line["step"]: line["time"] for line in lines if line["kind"] == "train"}
    return (STEPS - WARM_UP) * GLOBAL_BATCH / (times[STEPS] - times[WARM_UP])


def main() -> None:
    load, count = Load(), how_many(4)
    source = os.environ.get("MNIST_DIR")
    if not source:
        print_row(WHAT, AGAINST, "≥ 1.1x", "not measured", "0", "-", "MNIST_DIR is not set", str(load))
        return
    with workplace() as folder:
        unpack(Path(source), folder / "data")
        shutil.copyfile(ROOT / "jobs" / "mnist.py", folder / "code" / "mnist.py")

        def orch(precision: str) -> float:
            with ended(OrchLaunch(folder, job(folder, precision, steps=STEPS), 1, NPROC)) as launch:
                launch.wait()
                return rate_of_metrics(launch.run_folder)

        def plain(workers: int) -> float:
            words = ["--data", str(folder / "data"), "--steps", str(STEPS), "--workers", str(workers)]
            words += ["--global-batch", str(GLOBAL_BATCH), "--warm-up", str(WARM_UP)]
            with ended(TorchrunLaunch(folder, "plain_mnist.py", one_node(NPROC), *words)) as launch:
                launch.wait()
                first, last = (stamp["time"] for stamp in launch.stamps.all("step") if stamp["rank"] == 0)
                return (STEPS - WARM_UP) * GLOBAL_BATCH / (last - first)

        def epoch(precision: str) -> dict[str, Any]:
            with ended(OrchLaunch(folder, job(folder, precision, epochs=1), 1, NPROC)) as launch:
                launch.wait(400)
                found: dict[str, Any] = json.loads(next(launch.run_folder.rglob("result.json")).read_text())
                return found

        tried = {workers: plain(workers) for workers in WORKERS}
        best = max(tried, key=lambda workers: tried[workers])
        say(f"the plain script by its workers: {tried}; {best} is taken")
        full, half = Pairs(), Pairs()
        for number in range(1, count + 1):
            full.ours.append(orch("fp32"))
            half.ours.append(orch("bf16"))
            full.theirs.append(plain(best))
            say(f"round {number} of {count}: {full.ours[-1]}, bf16 {half.ours[-1]}, plain {full.theirs[-1]}")
        half.theirs = full.theirs
        rates = ", ".join(f"{rate:.0f}/s with {workers} workers" for workers, rate in tried.items())
        note = f"the plain script at its best ({rates})"
        print_pairs(WHAT, AGAINST, Target(1.1, at_least=True), full, full.medians("/s", 0), load, note)
        note = "the plain script stays in float32"
        print_pairs(
            "the same with `precision: bf16`",
            AGAINST,
            Target(1.6, at_least=True),
            half,
            half.medians("/s", 0),
            load,
            note,
        )
        load = Load()
        whole, rounded = epoch("fp32"), epoch("bf16")
    reached, other = (100 * result["accuracy"] for result in (whole, rounded))
    shown = f"{reached:.2f} % on {whole['test_samples']:,} test images"
    note = f"{'met' if reached >= 98 else '**falls short**'}; one run, {whole['seconds']:.0f} s"
    print_row("one epoch of MNIST, accuracy", "-", "≥ 98 %", shown, "-", "-", note, str(load))
    shown = f"{other:.2f} %, {other - reached:+.2f} points"
    note = f"{'met' if abs(other - reached) <= 0.3 else '**falls short**'}; one run, {rounded['seconds']:.0f} s"
    print_row("the same with `precision: bf16`", "float32", "within 0.3 points", shown, "-", "-", note, str(load))


if __name__ == "__main__":
    main()

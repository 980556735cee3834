"""How fast: each figure beside that of another way to do the same, in turns, in one run."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.gpu.facts import seconds_of
from tests.gpu.lab import PROGRAMS, Lab, succeeded

ROUNDS = 3
BF16_PEAK = {"H100": 989.0, "H200": 989.0, "A100": 312.0}  # TFLOP/s without sparsity, from the makers' data sheets
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


def start(lab: Lab) -> dict[str, Any]:
    """Measure from the command to a group that has summed once: orch forked, orch exec'd, torchrun; medians."""
    seconds: dict[str, list[float]] = {"fork": [], "exec": [], "torchrun": []}
    for number in range(lab.of(ROUNDS, 1)):
        for how, found in seconds.items():
            stamp = lab.folder / f"{how}-{number}.json"
            begun = time.time()
            _run(lab, how, "joined.py", STAMP=str(stamp))
            found.append(json.loads(stamp.read_text())["time"] - begun)
    medians = {how: statistics.median(found) for how, found in seconds.items()}
    ratios = {f"{how} of torchrun": f"{medians[how] / medians['torchrun']:.2f}x" for how in ("fork", "exec")}
    return {**{f"{how} s": round(value, 2) for how, value in medians.items()}, **ratios}


def iterations(lab: Lab) -> dict[str, Any]:
    """Count the steps a second of a small DDP loop, under orch and torchrun in turns."""
    return _ratio(lab, "loop.py", "steps a second", STEPS=str(lab.of(2000, 100)), WIDTH="512")


def bare(lab: Lab) -> dict[str, Any]:
    """Run the same DDP script with a large model under orch and torchrun in turns."""
    return _ratio(lab, "loop.py", "steps a second", STEPS=str(lab.of(200, 20)), WIDTH=str(lab.of(8192, 256)))


def _ratio(lab: Lab, program: str, what: str, **environment: str) -> dict[str, Any]:
    rates: dict[str, list[float]] = {"exec": [], "torchrun": []}
    peaks: dict[str, int] = {}
    for number in range(lab.of(ROUNDS, 1)):
        for how, found in rates.items():
            stamp = lab.folder / f"{how}-{number}.json"
            _run(lab, how, program, STAMP=str(stamp), **environment)
            told = json.loads(stamp.read_text())
            found.append(told["rate"])
            peaks[how] = told["peak"]
    ours, theirs = (statistics.median(rates[how]) for how in ("exec", "torchrun"))
    return {f"orch {what}": round(ours, 1), "of torchrun's": f"{ours / theirs:.3f}x", "peak MiB": peaks["exec"] >> 20}


def _run(lab: Lab, how: str, program: str, **environment: str) -> None:
    """Run a program as one rank: by torchrun, or by orch with a launcher."""
    environment["DEVICE"] = lab.device
    if how == "torchrun":
        argv = [*TORCHRUN, "--standalone", "--nproc-per-node", "1", str(PROGRAMS / program)]
        subprocess.run(argv, env={**os.environ, **environment}, check=True, capture_output=True, timeout=300)
        return
    given = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
    job = lab.job(f"{how}-{Path(program).stem}", f"name: {Path(program).stem}\nlauncher: {how}\nscript: {program}\n")
    succeeded(lab.submit(job, lab.profile(), *given))


def trainer(lab: Lab) -> dict[str, Any]:
    """Hold the shared trainer's samples a second against a loop by hand with the same model, in turns."""
    steps, wide = lab.of(1000, 30), lab.of(1024, 64)
    rates: dict[str, list[float]] = {"by hand": [], "trainer": []}
    for _ in range(lab.of(ROUNDS, 1)):
        rates["by hand"].append(_by_hand(lab, steps, wide))
        rates["trainer"].append(_by_trainer(lab, steps, wide))
    ours, theirs = (statistics.median(rates[name]) for name in ("trainer", "by hand"))
    return {"trainer steps/s": round(ours, 1), "of a loop by hand": f"{ours / theirs:.3f}x"}


def _by_hand(lab: Lab, steps: int, wide: int) -> float:
    import torch

    torch.manual_seed(0)
    layers = [
        torch.nn.Linear(64, wide),
        torch.nn.Tanh(),
        torch.nn.Linear(wide, wide),
        torch.nn.Tanh(),
        torch.nn.Linear(wide, 1),
    ]
    model = torch.nn.Sequential(*layers).to(lab.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs = torch.randn(32, 64, device=lab.device)
    targets = inputs.square().mean(1, keepdim=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()

    return 1 / seconds_of(lab, step, steps)


def _by_trainer(lab: Lab, steps: int, wide: int) -> float:
    """Return the rate between two log lines, the first of which comes when all is warm."""
    import shutil

    from tests.gpu.trainings import train

    shutil.rmtree(lab.folder / "trainer", ignore_errors=True)
    argv = (
        "--steps",
        str(2 * steps),
        "--log-every",
        str(steps),
        "--save-every",
        str(2 * steps),
        "--eval-every",
        str(2 * steps),
    )
    train(
        lab,
        "trainer",
        *argv,
        "--lr",
        "0.01",
        "--precision",
        "fp32",
        "--strategy",
        "single",
        "--option",
        f"wide={wide}",
        grouped=False,
    )
    rows = [json.loads(line) for line in (lab.folder / "trainer" / "metrics.jsonl").read_text().splitlines()]
    return float(next(row["rate"] for row in rows if row["kind"] == "train" and row["step"] == 2 * steps)) / 32


def utilisation(lab: Lab) -> dict[str, Any]:
    """Train a GPT of 1.2 B parameters ten steps in each precision: FLOP/s, and the share of the card's."""
    import torch

    peak = next((value for name, value in BF16_PEAK.items() if name in torch.cuda.get_device_name(0)), None)
    values: dict[str, Any] = {}
    for name, options in (
        ("fp32", ()),
        ("tf32", ("tf32",)),
        ("bf16", ("bf16",)),
        ("bf16, compiled, fused", ("bf16", "compile", "fused")),
    ):
        flops = _gpt_flops(options)
        values[f"{name} TFLOP/s"] = round(flops / 1e12)
        if peak and "bf16" in options:
            values[f"{name} MFU"] = f"{flops / 1e12 / peak:.0%}"
    return values


def _gpt_flops(options: Sequence[str], width: int = 2048, layers: int = 24, batch: int = 500) -> float:
    """Return FLOP/s of training the shipped GPT at this size, counted as six a parameter and token."""
    import sys as system

    import torch

    system.path.insert(0, str(PROGRAMS.parents[2] / "jobs"))
    import gpt  # type: ignore[import-not-found]

    torch.backends.cuda.matmul.allow_tf32 = "tf32" in options
    gpt.SHAPE = {"width": width, "layers": layers, "heads": 16}
    model = gpt.model(_no_options()).to("cuda")
    parameters = sum(value.numel() for value in model.parameters())
    network = torch.compile(model) if "compile" in options else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused="fused" in options)
    letters = torch.randint(0, len(gpt.LETTERS), (batch, gpt.CONTEXT), device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled="bf16" in options):
            lost = gpt.loss(network(letters).float(), letters)
        lost.backward()
        optimizer.step()

    torch.cuda.empty_cache()
    seconds = seconds_of(Lab(Path("/")), step, 10)
    return 6 * parameters * letters.numel() / seconds


def _no_options() -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(extra={})


def checkpoint(lab: Lab) -> dict[str, Any]:
    """Save much at once, beside the training and within it, against torch.save and fsync."""
    import torch

    from orchestrator.protocol.checkpoints.checkpoint_dir import Manifest
    from orchestrator.training.checkpoint import format as checkpoints

    count = lab.of(10, 1)
    size = lab.of(10 << 28, 1 << 24)  # numbers of four bytes
    state = {f"weights {number}": torch.randn(size // count, device=lab.device) for number in range(count)}
    seconds: dict[str, float] = {}
    begun = time.perf_counter()
    with open(lab.folder / "plain.pt", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    seconds["torch.save, fsync"] = time.perf_counter() - begun
    (lab.folder / "plain.pt").unlink()
    folder = lab.folder / "checkpoints"
    folder.mkdir()
    begun = time.perf_counter()
    checkpoints.save(folder, state, Manifest(step=1, epoch=0, world_size=1, metric={}))
    seconds["orch"] = time.perf_counter() - begun
    return {
        "bytes GB": round(size * 4 / 1e9, 1), **{f"{name} s": round(value, 2) for name, value in seconds.items()},
        "orch of torch.save": f"{seconds['orch'] / seconds['torch.save, fsync']:.2f}x",
    }  # fmt: skip

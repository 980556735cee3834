"""Are the numbers right: weights against float64, resumes, saves; and what the device is made to wait for."""

from __future__ import annotations

import os
from typing import Any

from tests.gpu.lab import PROGRAMS, Lab, NotHere, environ
from tests.gpu.trainings import copy_checkpoints, distance, keep_only, train

STEPS = ("--steps", "5", "--save-every", "5", "--lr", "0.01")
CLOSE = {"fp32": 1e-5, "tf32": 1e-3, "bf16": 1e-2, "fp16": 1e-2}
GROUPED = ("ddp", "fsdp")
ALONE = ("single", "dp", "dp-balanced")


def strategies(lab: Lab) -> dict[str, Any]:
    """Hold each strategy's weights after five steps against those of float64 on the CPU."""
    reference = train(
        lab, "reference", *STEPS, "--option", "double=true", "--strategy", "single", device="cpu", grouped=False
    )
    values, wrong = {}, []
    for strategy in (*ALONE, *GROUPED):
        for precision in ("fp32", "tf32", "bf16", "fp16") if lab.cuda else ("fp32", "bf16"):
            if (strategy, precision) == ("fsdp", "fp16"):  # refused: no scaler for shards
                continue
            name = f"{strategy}-{precision}"
            argv = (*STEPS, "--strategy", strategy, "--precision", precision)
            values[name] = distance(reference, train(lab, name, *argv, grouped=strategy in GROUPED))
            if values[name] > CLOSE[precision]:
                wrong.append(f"{name}: {values[name]:.1e}")
    assert not wrong, f"further away than {CLOSE}: {', '.join(wrong)}"
    return {name: f"{value:.0e}" for name, value in values.items()}


def resume(lab: Lab) -> dict[str, Any]:
    """Save at step 5 and go on to 10: on the same device bit for bit, dropout included; elsewhere up to rounding."""
    argv = ("--steps", "10", "--save-every", "5", "--lr", "0.01", "--deterministic", "--precision", "fp32")
    rough = ("--option", "dropout=0.5")
    whole = train(lab, "whole", *argv, *rough)
    copy_checkpoints(lab, "whole", "again")
    keep_only(lab, "again", 5)
    assert distance(whole, train(lab, "again", *argv, *rough)) == 0, "a resumed run differs from an unbroken one"
    values: dict[str, Any] = {"resumed": "equal bit for bit"}
    plain = train(lab, "plain", *argv)
    for device in ("cpu", *(["cuda"] if lab.cuda else [])):
        for strategy in ("ddp", "fsdp", "single"):
            name = f"to-{strategy}-{device}"
            copy_checkpoints(lab, "plain", name)
            keep_only(lab, name, 5)
            found = train(lab, name, *argv, "--strategy", strategy, device=device, grouped=strategy != "single")
            values[f"{strategy} on {device}"] = f"{distance(plain, found):.0e}"
            assert distance(plain, found) < 1e-5, f"{name}: {distance(plain, found)}"
    return values


def async_save(lab: Lab) -> dict[str, Any]:
    """Save beside the training, which overwrites the weights at once: what is saved is what was there."""
    argv = (
        "--steps",
        "6",
        "--save-every",
        "3",
        "--lr",
        "0.01",
        "--precision",
        "fp32",
        "--option",
        f"wide={lab.of(8192, 256)}",
    )
    plain = train(lab, "plain", *argv)
    aside = train(lab, "aside", *argv, "--async-save")
    keep_only(lab, "plain", 3)
    keep_only(lab, "aside", 3)
    first = [_weights(lab, name, 3) for name in ("plain", "aside")]
    assert distance(*first) == 0, "what was saved at step 3 is not what was there"
    assert distance(plain, aside) == 0
    return {"weights MB": round(sum(value.numel() * 4 for value in plain.values()) / 1e6)}


def _weights(lab: Lab, name: str, step: int) -> dict[str, Any]:
    from orchestrator.training.checkpoint import format as checkpoints

    state, manifest = checkpoints.load(lab.folder / name / "checkpoints" / f"step_{step:08d}")
    assert manifest.step == step
    return {key: value.double() for key, value in state["model"].items()}


def syncs(lab: Lab) -> dict[str, Any]:
    """Train under torch's own watch for synchronisations: between log lines there is none."""
    import warnings

    import torch

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            train(lab, "few", "--steps", "60", "--log-every", "1000", "--save-every", "60")
            few = _count(seen)
            train(lab, "many", "--steps", "260", "--log-every", "1000", "--save-every", "260")
        finally:
            torch.cuda.set_sync_debug_mode("default")
        more = _count(seen) - 2 * few
    # 32 of 320 samples a step: an epoch has 10 steps, and its end may cost some (a new order, an evaluation).
    assert more <= 20 * 6, f"{more} synchronisations in 200 steps and 20 epochs more"
    return {"synchronisations in 200 steps, 20 epochs": more}


def cores(lab: Lab) -> dict[str, Any]:
    """Train a step, and hold the cores of this process's threads against those that the kernel says are near."""
    import torch

    from orchestrator.training.distributed.cores import _address, near_cores

    allowed = os.sched_getaffinity(0)
    near = near_cores(_address(torch.device("cuda", 0))) & allowed
    assert near, "the kernel does not tell which cores are near cuda:0, or torch not its address"
    if near == allowed:
        raise NotHere("all cores are near the GPU")
    train(lab, "bound", "--steps", "1", "--save-every", "1")
    threads = {frozenset(os.sched_getaffinity(int(thread))) for thread in os.listdir("/proc/self/task")}
    assert threads == {frozenset(near)}, f"threads on {sorted(map(len, threads))} cores, of {len(near)} near"
    return {"cores near": len(near), "of": len(allowed)}


def _count(seen: list[Any]) -> int:
    return sum("synchroniz" in str(each.message) for each in seen)


def sharded_memory(lab: Lab) -> dict[str, Any]:
    """Shard a GPT of 1.2 B parameters as one of eight ranks of a group that sends nothing; told is the most it took."""
    import torch
    import torch.distributed as dist

    try:
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError as error:
        raise NotHere(f"this torch has no fake process group: {error}") from error
    from orchestrator.training.data.task import load_task
    from orchestrator.training.distributed.ranks import Ranks
    from orchestrator.training.options import parse
    from orchestrator.training.strategies.base import Setup
    from orchestrator.training.strategies.fsdp import Fsdp

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    layers = [torch.nn.TransformerEncoderLayer(2048, 16, 8192, batch_first=True) for _ in range(24)]
    whole = sum(value.nbytes for layer in layers for value in layer.parameters())
    largest = max(sum(value.nbytes for value in layer.parameters()) for layer in layers)
    options = parse(["--task", str(PROGRAMS / "mlp.py"), "--strategy", "fsdp", "--precision", "bf16", "--lr", "0.01"])
    ranks, device = Ranks(0, 0, 8, 8, True), torch.device("cuda", 0)
    torch.cuda.reset_peak_memory_stats()
    Fsdp(Setup(options, load_task(options.task), ranks, device, grouped=True), torch.nn.Sequential(*layers))
    peak = torch.cuda.max_memory_allocated()
    dist.destroy_process_group()
    assert peak <= whole / 8 + 2 * largest + (64 << 20), f"{peak >> 20} MiB at the start; the whole has {whole >> 20}"
    return {"peak MiB": peak >> 20, "whole model MiB": whole >> 20}


def compiled(lab: Lab) -> dict[str, Any]:
    """Train compiled with an epoch whose last batch is smaller, evaluate, and resume: torch counts its compilations."""
    import torch._dynamo

    kind = "inductor" if lab.cuda else "aot_eager"
    argv = ("--global-batch", "48", "--compile", kind, "--strategy", "single", "--save-every", "8", "--lr", "0.01")
    graphs = 0
    for steps in ("8", "16"):  # 320 samples: an epoch is six batches of 48, and one of 32
        torch._dynamo.reset()  # as in a process of its own
        torch._dynamo.utils.counters.clear()
        train(lab, "compiled", *argv, "--steps", steps, grouped=False)
        graphs += torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert 2 <= graphs <= 6, f"{graphs} graphs were compiled by a start and a resume"  # up to three each
    return {"graphs of a start and a resume": graphs}


def loader(lab: Lab) -> dict[str, Any]:
    """Read the samples by workers, forked and spawned, and from memory: the weights are equal bit for bit."""
    argv = ("--steps", "20", "--save-every", "20", "--lr", "0.01", "--precision", "fp32", "--deterministic")
    memory = train(lab, "memory", *argv)
    count = str(min(8, os.cpu_count() or 1))
    for start in ("fork", "spawn"):
        with environ(PYTHONPATH=os.pathsep.join([str(PROGRAMS), os.environ.get("PYTHONPATH", "")])):
            found = train(lab, start, *argv, "--option", "dataset=true", "--workers", count, "--worker-start", start)
        assert distance(memory, found) == 0, f"with workers that are {start}ed the weights differ"
    return {"workers": count}

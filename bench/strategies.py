"""Samples a second of each strategy against a loop written by hand for it, in the same processes, taking turns.

Both train the GPT of jobs/gpt.py on the same tensors with the same optimizer. Ours does all that the entrypoint does at
a step: the sampler, heartbeats, the agreement on stop signals, a line of metrics every 10 steps.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from batches import whole_batches
from pairs import ROOT, Load, Pairs, Target, print_pairs, say
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from orchestrator.training import spawn
from orchestrator.training.data.task import Task, load_task
from orchestrator.training.distributed import group
from orchestrator.training.distributed.devices import choose
from orchestrator.training.distributed.ranks import read_ranks
from orchestrator.training.options import Options, parse, read_places
from orchestrator.training.strategies import find
from orchestrator.training.train import Trainer

BATCH, STEPS = 48, 5
RANKS = {
    "single": 1, "dp": 1, "dp-balanced": 1, "model-parallel": 1, "ddp": 2, "fsdp": 2, "pipeline": 2, "accelerate": 2,
}  # fmt: skip
Step = Callable[[Tensor, Tensor], object]


def by_hand(name: str, task: Task, options: Options) -> Step:
    """One training step as a tutorial would write it for this strategy."""
    torch.manual_seed(0)
    model: Any = task.model(options)
    backward: Callable[[Tensor], object] = lambda loss: loss.backward()  # noqa: E731
    if name == "pipeline":
        return pipeline_by_hand(model, task, options)
    if name == "ddp":
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if name == "fsdp":
        for block in model:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    if name == "accelerate":
        accelerator = Accelerator(
            cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)]
        )
        model, optimizer = accelerator.prepare(model, optimizer)
        backward = accelerator.backward

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        backward(task.loss(model(inputs), targets))
        optimizer.step()

    return step


def pipeline_by_hand(model: Any, task: Task, options: Options) -> Step:
    """The model cut by hand, where the weights are about halved."""
    rank, ranks = group.rank(), group.world_size()
    piece = [model[:3], model[3:]][rank]
    stage = PipelineStage(piece, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, options.micro_batches, task.loss)
    optimizer = torch.optim.AdamW(piece.parameters(), lr=options.lr)

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets)
        optimizer.step()

    return step


def batches(data: tuple[Tensor, ...], name: str) -> Iterator[list[Tensor]]:
    """This rank's parts of whole batches, in a new order each epoch."""
    ranks, rank = (group.world_size(), group.rank()) if find(name).shares_data else (1, 0)
    for epoch in itertools.count():
        order = torch.randperm(len(data[-1]), generator=torch.Generator().manual_seed(epoch))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            mine = order[start : start + BATCH][rank::ranks]
            yield [tensor[mine] for tensor in data]


def measure(name: str, count: int, folder: str) -> list[tuple[float, float]]:
    """Samples a second, ours and by hand, of `count` pairs of turns; what each rank runs."""
    os.chdir(folder)
    os.dup2(2, 1)  # stdout is the table's
    os.environ["ORCH_BEAT_FILE"] = f"beat.{os.environ['RANK']}"
    torch.set_num_threads(1)
    never = str(10**9)
    options = parse(["--task", str(ROOT / "jobs" / "gpt.py"), "--strategy", name, "--global-batch", str(BATCH),
                     "--lr", "0.003", "--steps", never, "--save-every", never, "--eval-every", never])  # fmt: skip
    places, ranks, task = read_places(), read_ranks(), load_task(options.task)
    choice = choose("gloo", ranks)
    with group.joined(ranks, choice):
        return _turns(Trainer(options, places, ranks, choice, task), by_hand(name, task, options), count)


def _turns(trainer: Trainer, step: Step, count: int) -> list[tuple[float, float]]:
    whole = whole_batches(trainer)
    parts = batches(trainer.data.train, trainer.options.strategy)
    sides = (lambda: trainer._one_step(*next(whole)), lambda: step(*next(parts)))
    rates = []
    for number in range(count + 1):
        pair = []
        for side in sides if number % 2 else sides[::-1]:
            group.barrier()
            begun = time.monotonic()
            for _ in range(STEPS):
                side()
            group.barrier()
            pair.append(STEPS * BATCH / (time.monotonic() - begun))
        rates.append((pair[0], pair[1]) if number % 2 else (pair[1], pair[0]))
    trainer.close()
    return rates[1:]  # the first pair warms up


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--only", choices=RANKS)
    found = parser.parse_args()
    for name, ranks in RANKS.items():
        if found.only in (None, name):
            row(name, ranks, max(1, found.pairs))


def row(name: str, ranks: int, count: int) -> None:
    load = Load()
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as folder:
        rates = spawn(measure, ranks, name, count, folder)[0]
    pairs = Pairs([ours for ours, _ in rates], [theirs for _, theirs in rates])
    say(f"{name}: {statistics.median(pairs.ratios):.3f}")
    what = f"`{name}`, samples a second, {ranks} rank{'s' if ranks > 1 else ''}"
    print_pairs(what, "a loop by hand", Target(0.98, at_least=True), pairs, pairs.medians("/s", 0), load)


if __name__ == "__main__":
    main()

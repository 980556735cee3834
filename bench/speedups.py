"""Samples a second of the shared entrypoint with an option against without it, in the same processes, taking turns.

Samples a second of processor time stand beside it: a busy machine changes them little, but waiting is not in them.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from pairs import ROOT, Load, Pairs, print_row
from torch.utils.data import DataLoader, TensorDataset

from orchestrator.training import group, spawn
from orchestrator.training.options import parse, read_places
from orchestrator.training.sampler import Share
from orchestrator.training.task import load_task
from orchestrator.training.train import Trainer


@dataclass(frozen=True)
class Case:
    """An option, or batches from a DataLoader with so many workers, and what it is tried on."""

    option: str
    task: str
    batch: int
    ranks: int = 1
    workers: int | None = None

    @property
    def words(self) -> list[str]:
        """The entrypoint's arguments, without the option."""
        file, *more = self.task.split()
        return ["--task", str(ROOT / "jobs" / file), "--global-batch", str(self.batch), *more]


GPT, IMAGES, WIDE = "gpt.py", "cifar10.py", "regression.py --option hidden=1500"
CASES = (
    Case("--accumulate 4", GPT, 48, ranks=2),
    Case("--precision bf16", GPT, 48),
    Case("--precision bf16", IMAGES, 24),
    Case("--channels-last", IMAGES, 24),
    Case("--channels-last --precision bf16", IMAGES, 24),
    Case("--compile inductor", GPT, 48),
    Case("--compile inductor", IMAGES, 24),
    Case("--fused", GPT, 48),
    Case("--fused", WIDE, 48),
    Case("", IMAGES, 24, workers=0),
    Case("", IMAGES, 24, workers=1),
    Case("--bucket-cap-mb 1", WIDE, 48, ranks=2),
    Case("--gradient-compression bf16", WIDE, 48, ranks=2),
    Case("--no-gradient-as-bucket-view", GPT, 48, ranks=2),
    Case("--static-graph", GPT, 48, ranks=2),
)
STEPS = 5
Speed = tuple[float, float]  # samples a second, and samples a second of the rank's processor time


def measure(case: Case, count: int, folder: str) -> list[tuple[Speed, Speed]]:
    """The speeds with and without the option, of `count` pairs of turns; what each rank runs."""
    os.chdir(folder)
    os.dup2(2, 1)  # stdout is the table's
    torch.set_num_threads(1)
    places, ranks = read_places(), group.read_ranks()
    choice = group.choose("gloo", ranks)
    never = str(10**9)
    common = [*case.words, "--steps", never, "--save-every", never, "--eval-every", never]
    with group.joined(ranks, choice):
        trainers = [
            Trainer(options, places, ranks, choice, load_task(options.task))
            for options in (parse([*common, *case.option.split()]), parse(common))
        ]
        sides = [steps_of(trainer) for trainer in trainers]
        if case.workers is not None:
            sides[0] = loaded_steps_of(trainers[0], case.workers)
        speeds = [_pair(sides, reverse=number % 2 == 0) for number in range(count + 1)]
        for trainer in trainers:
            trainer.close()
    return speeds[1:]


def steps_of(trainer: Trainer) -> Callable[[], int]:
    """A function that takes STEPS steps on whole batches and returns how many samples that were."""

    def shares() -> Iterator[object]:
        for share in itertools.chain.from_iterable(trainer.sampler.shares() for _ in itertools.count()):
            if share.count == trainer.options.global_batch:
                yield share

    steps = (trainer._one_step(share) for share in shares())

    def take() -> int:
        for _ in range(STEPS):
            next(steps)
        return STEPS * trainer.options.global_batch

    return take


def loaded_steps_of(trainer: Trainer, workers: int) -> Callable[[], int]:
    """The same with batches that a DataLoader puts together, sample by sample."""
    size = trainer.options.global_batch
    data = TensorDataset(*trainer.data.train)
    loader = DataLoader(data, size, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0)
    batches = itertools.chain.from_iterable(loader for _ in itertools.count())

    def take() -> int:
        for _ in range(STEPS):
            trainer.strategy.begin_step()
            trainer.strategy.backward(tuple(next(batches)), Share(torch.arange(size), size))
            trainer.strategy.step()
        return STEPS * size

    return take


def _pair(sides: list[Callable[[], int]], *, reverse: bool) -> tuple[Speed, Speed]:
    speeds = []
    for side in sides[::-1] if reverse else sides:
        group.barrier()
        begun, used = time.monotonic(), time.process_time()
        samples = side()
        group.barrier()
        speeds.append((samples / (time.monotonic() - begun), samples / (time.process_time() - used)))
    with_it, without = speeds[::-1] if reverse else speeds
    return with_it, without


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=25)
    parser.add_argument("--only", default="", help="rows whose name holds this")
    found = parser.parse_args()
    for case in CASES:
        name = f"`{case.option}`" if case.workers is None else f"a `DataLoader` with {case.workers} workers"
        if found.only not in name:
            continue
        load = Load()
        with tempfile.TemporaryDirectory(prefix="orch-bench-") as folder:
            speeds = spawn(measure, case.ranks, case, max(1, found.pairs), folder)[0]
        clock, used = (
            Pairs([ours[kind] for ours, _ in speeds], [theirs[kind] for _, theirs in speeds]) for kind in (0, 1)
        )
        what = f"`jobs/{case.task}`, batch {case.batch}, {case.ranks} rank{'s' * (case.ranks > 1)}"
        # Workers have processor time of their own.
        second = "-" if case.workers else ratio(used)
        print_row(name, what, ratio(clock), clock.medians("/s", 0), second, str(len(speeds)), str(load))


def ratio(pairs: Pairs) -> str:
    return f"{statistics.median(pairs.ratios):.2f} ({min(pairs.ratios):.2f}-{max(pairs.ratios):.2f})"


if __name__ == "__main__":
    main()

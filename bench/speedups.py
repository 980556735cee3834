"""Samples a second of the shared entrypoint with an option against without it, in the same processes, taking turns.

Samples a second of processor time stand beside it: a busy machine changes them little, but waiting is not in them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from batches import whole_batches
from pairs import ROOT, Load, Pairs, print_row

from orchestrator.training import spawn
from orchestrator.training.data.task import load_task
from orchestrator.training.distributed import group
from orchestrator.training.distributed.devices import choose
from orchestrator.training.distributed.ranks import read_ranks
from orchestrator.training.options import parse, read_places
from orchestrator.training.train import Trainer


@dataclass(frozen=True)
class Case:
    """An option, what it is held against if that is an option too, what it is tried on, and the steps of a turn."""

    option: str
    task: str
    batch: int
    ranks: int = 1
    against: str = ""
    steps: int = 5

    @property
    def words(self) -> list[str]:
        """The entrypoint's arguments, without the options."""
        file, *more = self.task.split()
        return ["--task", str(ROOT / "jobs" / file), "--global-batch", str(self.batch), *more]


GPT, IMAGES, WIDE = "gpt.py", "cifar10.py", "regression.py --option hidden=1500"
AUGMENTED = f"{IMAGES} --option augment=true"
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
    Case("--option augment=true --workers 0", IMAGES, 24),
    # A worker reads two batches ahead while the other side has its turn: of many steps that is a small part.
    Case("--workers 1", AUGMENTED, 24, against="--workers 0", steps=50),
    Case("--workers 1", AUGMENTED, 96, against="--workers 0", steps=20),
    Case("--bucket-cap-mb 1", WIDE, 48, ranks=2),
    Case("--gradient-compression bf16", WIDE, 48, ranks=2),
    Case("--no-gradient-as-bucket-view", GPT, 48, ranks=2),
    Case("--static-graph", GPT, 48, ranks=2),
)
Speed = tuple[float, float]  # samples a second, and samples a second of the rank's processor time


def measure(case: Case, count: int, folder: str) -> list[tuple[Speed, Speed]]:
    """The speeds with and without the option, of `count` pairs of turns; what each rank runs."""
    os.chdir(folder)
    os.dup2(2, 1)  # stdout is the table's
    torch.set_num_threads(1)
    places, ranks = read_places(), read_ranks()
    choice = choose("gloo", ranks)
    never = str(10**9)
    common = [*case.words, "--steps", never, "--save-every", never, "--eval-every", never]
    with group.joined(ranks, choice):
        trainers = [
            Trainer(options, places, ranks, choice, load_task(options.task))
            for options in (parse([*common, *case.option.split()]), parse([*common, *case.against.split()]))
        ]
        sides = [steps_of(trainer, case.steps) for trainer in trainers]
        speeds = [_pair(sides, reverse=number % 2 == 0) for number in range(count + 1)]
        for trainer in trainers:
            trainer.close()
    return speeds[1:]


def steps_of(trainer: Trainer, count: int) -> Callable[[], int]:
    """A function that takes `count` steps on whole batches and returns how many samples that were."""

    steps = (trainer._one_step(tensors, share) for tensors, share in whole_batches(trainer))

    def take() -> int:
        for _ in range(count):
            next(steps)
        return count * trainer.options.global_batch

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
        name = f"`{case.option}`" + (f" instead of `{case.against}`" if case.against else "")
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
        second = "-" if "--workers 1" in case.option else ratio(used)
        print_row(name, what, ratio(clock), clock.medians("/s", 0), second, str(len(speeds)), str(load))


def ratio(pairs: Pairs) -> str:
    return f"{statistics.median(pairs.ratios):.2f} ({min(pairs.ratios):.2f}-{max(pairs.ratios):.2f})"


if __name__ == "__main__":
    main()

"""Samples a second of the shared entrypoint with an option against without it, in the same processes, taking turns."""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

import torch
from pairs import ROOT, Load, Pairs, print_row

from orchestrator.training import group, spawn
from orchestrator.training.options import parse, read_places
from orchestrator.training.task import load_task
from orchestrator.training.train import Trainer

# What, on how many ranks, the task with its options, and the option that is measured.
CASES = (
    ("`--precision bf16`", 1, ["gpt.py", "--global-batch", "48"], ["--precision", "bf16"]),
    ("`--precision bf16`", 1, ["cifar10.py", "--global-batch", "24"], ["--precision", "bf16"]),
    ("`--accumulate 4`", 2, ["gpt.py", "--global-batch", "48"], ["--accumulate", "4"]),
    ("`--no-gradient-as-bucket-view`", 2, ["gpt.py", "--global-batch", "48"], ["--no-gradient-as-bucket-view"]),
    ("`--bucket-cap-mb 1`", 2, ["mlp", "--global-batch", "48"], ["--bucket-cap-mb", "1"]),
    ("`--gradient-compression bf16`", 2, ["mlp", "--global-batch", "48"], ["--gradient-compression", "bf16"]),
    ("`--static-graph`", 2, ["gpt.py", "--global-batch", "48"], ["--static-graph"]),
)
TASKS = {"mlp": ["regression.py", "--option", "hidden=1500"]}
STEPS = 5


def measure(words: list[str], option: list[str], count: int, folder: str) -> list[tuple[float, float]]:
    """Samples a second with and without the option, of `count` pairs of turns; what each rank runs."""
    os.chdir(folder)
    torch.set_num_threads(1)
    places, ranks = read_places(), group.read_ranks()
    choice = group.choose("gloo", ranks)
    task, *more = [*TASKS.get(words[0], words[:1]), *words[1:]]
    never = str(10**9)
    common = [
        "--task",
        str(ROOT / "jobs" / task),
        *more,
        "--steps",
        never,
        "--save-every",
        never,
        "--eval-every",
        never,
    ]
    with group.joined(ranks, choice):
        trainers = [
            Trainer(options, places, ranks, choice, load_task(options.task))
            for options in (parse([*common, *option]), parse(common))
        ]
        sides = [steps_of(trainer) for trainer in trainers]
        rates = [_pair(sides, reverse=number % 2 == 0) for number in range(count + 1)]
        for trainer in trainers:
            trainer.close()
    return rates[1:]


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


def _pair(sides: list[Callable[[], int]], *, reverse: bool) -> tuple[float, float]:
    rates = []
    for side in sides[::-1] if reverse else sides:
        group.barrier()
        begun = time.monotonic()
        samples = side()
        group.barrier()
        rates.append(samples / (time.monotonic() - begun))
    with_it, without = rates[::-1] if reverse else rates
    return with_it, without


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=25)
    count = max(1, parser.parse_args().pairs)
    for name, ranks, words, option in CASES:
        load = Load()
        with tempfile.TemporaryDirectory(prefix="orch-bench-") as folder:
            rates = spawn(measure, ranks, words, option, count, folder)[0]
        pairs = Pairs([ours for ours, _ in rates], [theirs for _, theirs in rates])
        ratio = statistics.median(pairs.ratios)
        task = " ".join(TASKS.get(words[0], words[:1]))
        spread = f"{ratio:.2f} ({min(pairs.ratios):.2f}-{max(pairs.ratios):.2f})"
        print_row(
            name, f"{task}, {ranks} rank{'s' * (ranks > 1)}", spread, pairs.medians("/s", 0), str(count), str(load)
        )


if __name__ == "__main__":
    main()

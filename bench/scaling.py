"""Samples a second of two ranks against one, each of one thread, in the same two processes, taking turns.

A turn is a few steps: by both ranks with `ddp`, by the first alone with `single` while the second waits, or by each on
its own. The last shows what the machine gives where nothing is exchanged. Processor time, which other programs on the
machine change little, shows what of a step the second rank does not halve. Trained are the residual network of
jobs/cifar10.py with the batch of its job, which computes much for each weight that is exchanged, and the GPT of
jobs/gpt.py, which computes little.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from pairs import ROOT, Load, Pairs, Target, print_pairs, print_row

from orchestrator.training import spawn
from orchestrator.training.data.sampler import Share
from orchestrator.training.data.task import load_task
from orchestrator.training.distributed import group
from orchestrator.training.distributed.devices import choose
from orchestrator.training.distributed.ranks import Ranks, read_ranks
from orchestrator.training.options import parse
from orchestrator.training.strategies import Setup, Strategy, find

STEPS = 5
BATCHES = {"cifar10": 96, "gpt": 48}


def measure(task: str, count: int) -> list[list[tuple[float, float]]]:
    """`count` times what `turn` gives: two ranks on one batch, on a batch each, one alone, two on their own."""
    torch.set_num_threads(1)
    batch = BATCHES[task]
    with group.joined(read_ranks(), choose("gloo", read_ranks())):
        ways = (("ddp", batch), ("ddp", 2 * batch), ("single", batch))
        shared, wide, own = (steps_of(task, strategy, samples) for strategy, samples in ways)
        alone = own if group.rank() == 0 else lambda: None
        turns = [(shared, batch), (wide, 2 * batch), (alone, batch), (own, 2 * batch)]
        rounds = [[turn(step, samples) for step, samples in turns] for _ in range(count + 1)]
    return rounds[1:]  # the first round warms up


def steps_of(file: str, name: str, batch: int) -> Callable[[], None]:
    """A function that takes this rank's part of one step on a batch of that size."""
    options = parse(["--task", str(ROOT / "jobs" / f"{file}.py"), "--strategy", name, "--global-batch", str(batch)])
    ranks = read_ranks() if name == "ddp" else Ranks()
    task, cpu = load_task(options.task), torch.device("cpu")
    torch.manual_seed(0)
    strategy: Strategy = find(name)(Setup(options, task, ranks, cpu, grouped=ranks.grouped), task.model(options))
    data = task.data(options).train
    parts = shares(len(data[-1]), batch, ranks)

    def step() -> None:
        strategy.begin_step()
        strategy.backward(data, next(parts))
        strategy.step()

    return step


def shares(samples: int, batch: int, ranks: Ranks) -> Iterator[Share]:
    """This rank's parts of batches, for ever."""
    for number in itertools.count():
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(number))[:batch]
        yield Share(order[ranks.rank :: ranks.world_size], batch)


def turn(step: Callable[[], None], samples: int) -> tuple[float, float]:
    """Samples a second of a turn, until both ranks are through with it, and this rank's processor time a step in ms."""
    group.barrier()
    begun, used = time.monotonic(), time.process_time()
    for _ in range(STEPS):
        step()
    group.barrier()
    return STEPS * samples / (time.monotonic() - begun), 1000 * (time.process_time() - used) / STEPS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--only", choices=BATCHES)
    found = parser.parse_args()
    for task in [found.only] if found.only else BATCHES:
        rows(task, max(1, found.pairs))


def rows(task: str, count: int) -> None:
    """Print what two ranks give one task, and what they could give at most."""
    load, name, batch = Load(), f"`jobs/{task}.py`", BATCHES[task]
    turns = [list(side) for side in zip(*spawn(measure, 2, task, count)[0], strict=True)]
    shared, wide, alone, own = ([rate for rate, _ in side] for side in turns)
    for what, ours in ((f"the same global batch of {batch}", shared), (f"a batch of {batch} for each rank", wide)):
        pairs = Pairs([*ours], [*alone])
        against = f"1 rank of one thread, batch {batch}"
        print_pairs(
            f"{name} by `ddp`, samples a second of 2 ranks of one thread, {what}", against,
            Target(1.7, at_least=True), pairs, pairs.medians("/s", 0), load,
        )  # fmt: skip
    ceiling = Pairs([*own], [*alone])
    what = f"{name}: two processes that exchange nothing, batch {batch} each"
    row(what, ceiling, ceiling.medians("/s", 0), "the machine's", load)
    one, half = ([used for _, used in side] for side in (turns[2], turns[0]))
    parts = Pairs([*one], [*half])
    note = "the step's own: what each rank has to do, such as the optimizer's step, is not halved"
    what = f"{name}: processor time of 1 rank by that of one of 2, which has half the batch"
    row(what, parts, parts.medians("ms a step", 1), note, load)


def row(what: str, pairs: Pairs, medians: str, note: str, load: Load) -> None:
    """A row of what two ranks could give at most."""
    shown = f"{statistics.median(pairs.ratios):.2f} ({min(pairs.ratios):.2f}-{max(pairs.ratios):.2f})"
    print_row(what, "1 rank of one thread", "-", shown, str(len(pairs.ratios)), medians, f"a limit: {note}", str(load))


if __name__ == "__main__":
    main()

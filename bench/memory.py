"""Peak memory of a rank under each strategy against a loop written by hand for it, and with an option against without.

A rank's figure is its largest resident size (VmHWM) over what it was before model and data were made: what Python and
torch take by themselves is left out. The GPT of jobs/gpt.py, 256 wide. Each side has processes of its own, in turns.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import os
import re
import statistics
import tempfile
from pathlib import Path

import torch
from pairs import ROOT, Load, Pairs, interleave, print_row
from strategies import RANKS, batches, by_hand

from orchestrator.training import spawn
from orchestrator.training.data.task import load_task
from orchestrator.training.distributed import group
from orchestrator.training.distributed.devices import choose
from orchestrator.training.distributed.ranks import read_ranks
from orchestrator.training.options import parse, read_places
from orchestrator.training.train import Trainer

STEPS = 4
STILL = 600
"""Seconds after which a rank has stood still: it says where, and the measurement ends."""
OPTIONS = (("ddp", "--accumulate 4"), ("ddp", "--no-gradient-as-bucket-view"))


def peak(name: str, more: list[str], ours: bool, folder: str) -> float:
    """MiB by which this rank has grown at most; what each rank runs."""
    faulthandler.dump_traceback_later(STILL, exit=True)
    os.chdir(folder)
    os.dup2(2, 1)  # stdout is the table's
    torch.set_num_threads(1)
    options = parse(["--task", str(ROOT / "jobs" / "gpt.py"), "--strategy", name, "--global-batch", "48",
                     "--option", "width=256", "--steps", str(STEPS), *more])  # fmt: skip
    ranks, task = read_ranks(), load_task(options.task)
    choice = choose("gloo", ranks)
    with group.joined(ranks, choice):
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = mebibytes("VmRSS")
        if ours:
            trainer = Trainer(options, read_places(), ranks, choice, task)
            for tensors, share in itertools.islice(trainer.batches(), STEPS):
                trainer._one_step(tensors, share)
            trainer.close()
        else:
            step = by_hand(name, task, options)
            for batch in itertools.islice(batches(task.data(options).train, name), STEPS):
                step(*batch)
        return mebibytes("VmHWM") - before


def mebibytes(key: str) -> float:
    """A size out of /proc/self/status."""
    found = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def largest(name: str, more: list[str], *, ours: bool) -> float:
    """The growth of the rank that grows most."""
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as folder:
        return max(spawn(peak, RANKS[name], name, more, ours, folder))


def row(what: str, against: str, pairs: Pairs, load: Load) -> None:
    ratios = pairs.ratios
    shown = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    print_row(what, against, "-", shown, str(len(ratios)), pairs.medians("MiB", 0), "", str(load))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--only", choices=RANKS)
    found = parser.parse_args()
    for name in [found.only] if found.only else RANKS:
        load = Load()
        pairs = interleave(
            lambda name=name: largest(name, [], ours=True), lambda name=name: largest(name, [], ours=False), found.pairs
        )
        row(f"`{name}`, peak memory of a rank", "a loop by hand", pairs, load)
    for name, option in () if found.only else OPTIONS:
        load, words = Load(), option.split()
        pairs = interleave(
            lambda name=name, words=words: largest(name, words, ours=True),
            lambda name=name: largest(name, [], ours=True),
            found.pairs,
        )
        row(f"`{name}` with `{option}`, peak memory of a rank", "without it", pairs, load)


if __name__ == "__main__":
    main()

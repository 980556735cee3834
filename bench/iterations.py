"""Iterations a second of the same script under orch, with logs and heartbeats, and under torchrun.

Both launches stand at the same time and take turns of a second or less; each round of turns is a pair.
"""

from __future__ import annotations

from launches import OrchLaunch, TorchrunLaunch, ended, one_node, workplace
from pairs import Load, Pairs, Target, how_many, print_pairs, say
from taking_turns import environment, rounds

NPROC = 2
TURNS, STEPS = 11, 200


def main() -> None:
    load, count, pairs = Load(), how_many(10), Pairs()
    env = environment(TURNS, STEPS)
    with workplace() as folder:
        for number in range(1, count + 1):
            with (
                ended(OrchLaunch(folder, {"script": "iterate.py"}, 1, NPROC, **env)) as orch,
                ended(TorchrunLaunch(folder, "iterate.py", one_node(NPROC), **env)) as torchrun,
            ):
                for ours, theirs in rounds([orch, torchrun], TURNS):
                    pairs.ours.append(ours)
                    pairs.theirs.append(theirs)
            say(f"launch {number} of {count}: {pairs.medians('/s', 0)}")
    note = f"{count} launches a side, {TURNS - 1} turns of {STEPS} iterations each"
    print_pairs(
        "iterations a second, logs and beats on, 2 ranks", "`torchrun`", Target(0.99, at_least=True),
        pairs, pairs.medians("/s", 0), load, note,
    )  # fmt: skip


if __name__ == "__main__":
    main()

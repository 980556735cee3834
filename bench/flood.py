"""Iterations a second under orch while rank 0 prints 200 MB a minute, and while it prints next to nothing.

Both launches stand at the same time and take turns; each round of turns is a pair.
"""

from __future__ import annotations

from launches import OrchLaunch, ended, workplace
from pairs import Load, Pairs, Target, how_many, print_pairs, say
from taking_turns import environment, rounds

NPROC = 2
TURNS, STEPS = 11, 200
FLOOD = 200 * 1024**2 // 60  # bytes a second


def main() -> None:
    load, count, pairs = Load(), how_many(6), Pairs()
    env = environment(TURNS, STEPS)
    with workplace() as folder:
        for number in range(1, count + 1):
            with (
                ended(OrchLaunch(folder, {"script": "iterate.py"}, 1, NPROC, BENCH_FLOOD=str(FLOOD), **env)) as flooded,
                ended(OrchLaunch(folder, {"script": "iterate.py"}, 1, NPROC, **env)) as quiet,
            ):
                for loud, still in rounds([flooded, quiet], TURNS):
                    pairs.ours.append(loud)
                    pairs.theirs.append(still)
            say(f"launch {number} of {count}: {pairs.medians('/s', 0)}")
    note = f"{count} launches a side, {TURNS - 1} turns of {STEPS} iterations each"
    print_pairs(
        "iterations a second, rank 0 prints 200 MB a minute", "the same job, quiet", Target(0.98, at_least=True),
        pairs, pairs.medians("/s", 0), load, note,
    )  # fmt: skip


if __name__ == "__main__":
    main()

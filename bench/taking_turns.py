"""Launches that stand at the same time and take turns; each round gives one figure for each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

from launches import Launch, ended, workplace
from pairs import Load, Pairs, Target, print_pairs, say

TURN_SECONDS = 120.0
TURNS, STEPS = 11, 200
Side = Callable[[Path, Mapping[str, str]], Launch]


def environment(turns: int, steps: int) -> dict[str, str]:
    """What programs/turns.py reads."""
    return {"BENCH_TURNS": str(turns), "BENCH_STEPS": str(steps)}


def compare_iterations(what: str, against: str, limit: float, ours: Side, theirs: Side, count: int) -> None:
    """Print the row of two launches of programs/iterate.py, made `count` times, each in a folder and environment."""
    load, pairs = Load(), Pairs()
    with workplace() as folder:
        for number in range(1, count + 1):
            with contextlib.ExitStack() as stack:
                both = [stack.enter_context(ended(side(folder, environment(TURNS, STEPS)))) for side in (ours, theirs)]
                for one, other in rounds(both, TURNS):
                    pairs.ours.append(one)
                    pairs.theirs.append(other)
            say(f"launch {number} of {count}: {pairs.medians('/s', 0)}")
    note = f"{count} launches a side, {TURNS - 1} turns of {STEPS} iterations each"
    print_pairs(what, against, Target(limit, at_least=True), pairs, pairs.medians("/s", 0), load, note)


def rounds(launches: list[Launch], turns: int) -> list[list[float]]:
    """Steps a second of rank 0, for each round but the first, which warms up, and for each launch in their order."""
    found = [[turn_of(launch, turn) for launch in launches] for turn in range(turns)]
    for launch in launches:
        launch.wait()
    return found[1:]


def turn_of(launch: Launch, turn: int) -> float:
    """Let a launch have its turn; return rank 0's steps a second."""

    def rates() -> list[float]:
        return [stamp["rate"] for stamp in launch.stamps.all("turn") if stamp["rank"] == 0]

    (launch.stamps.out / f"turn_{turn}").touch()
    if not launch.stamps.wait(lambda _: len(rates()) > turn, TURN_SECONDS):
        raise RuntimeError(f"turn {turn} never ended: {launch.stamps.out}")
    return rates()[turn]

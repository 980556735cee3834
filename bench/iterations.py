"""Iterations a second of the same script under orch, with logs and heartbeats, and under torchrun.

Both launches stand at the same time and take turns of a second or less, the other waiting meanwhile: what else the
machine does then meets both sides alike. Each pair of turns gives one ratio.
"""

from __future__ import annotations

from launches import Launch, OrchLaunch, TorchrunLaunch, ended, one_node, workplace
from pairs import Load, Pairs, Target, how_many, print_pairs, say

NPROC = 2
TURNS, ITERATIONS = 11, 200  # the first turn warms up


def take_turn(launch: Launch, turn: int) -> float:
    """Let the launch run one turn; rank 0's iterations a second."""

    def rates() -> list[float]:
        return [stamp["rate"] for stamp in launch.stamps.all("turn") if stamp["rank"] == 0]

    (launch.stamps.out / f"turn_{turn}").touch()
    if not launch.stamps.wait(lambda _: len(rates()) > turn, 60):
        raise RuntimeError(f"turn {turn} never ended: {launch.stamps.out}")
    return rates()[turn]


def main() -> None:
    load, count, pairs = Load(), how_many(10), Pairs()
    words = [str(TURNS), str(ITERATIONS)]
    with workplace() as folder:
        for number in range(1, count + 1):
            with (
                ended(OrchLaunch(folder, {"script": "iterate.py", "args": words}, 1, NPROC)) as orch,
                ended(TorchrunLaunch(folder, "iterate.py", one_node(NPROC), *words)) as torchrun,
            ):
                for turn in range(TURNS):
                    ours, theirs = take_turn(orch, turn), take_turn(torchrun, turn)
                    if turn:
                        pairs.ours.append(ours)
                        pairs.theirs.append(theirs)
                orch.wait()
                torchrun.wait()
            say(f"launch {number} of {count}: {pairs.medians('/s', 0)}")
    note = f"{count} launches a side, {TURNS - 1} turns of {ITERATIONS} iterations each"
    print_pairs(
        "iterations a second, logs and beats on, 2 ranks", "`torchrun`", Target(0.99, at_least=True),
        pairs, pairs.medians("/s", 0), load, note,
    )  # fmt: skip


if __name__ == "__main__":
    main()

"""Iterations a second of the same script under orch, with logs and heartbeats, and under torchrun."""

from __future__ import annotations

from launches import Launch, OrchLaunch, TorchrunLaunch, ended, one_node, workplace
from pairs import Load, Target, how_many, interleave, print_pairs

NPROC = 2
ITERATIONS = 2500


def rate(launch: Launch) -> float:
    """Rank 0's iterations a second, after the launch has ended by itself."""
    launch.wait()
    return float(next(stamp["rate"] for stamp in launch.stamps.all("rate") if stamp["rank"] == 0))


def main() -> None:
    load, count = Load(), how_many(10)
    with workplace() as folder:

        def orch() -> float:
            job = {"script": "iterate.py", "args": [ITERATIONS]}
            with ended(OrchLaunch(folder, job, 1, NPROC)) as launch:
                return rate(launch)

        def torchrun() -> float:
            with ended(TorchrunLaunch(folder, "iterate.py", one_node(NPROC), str(ITERATIONS))) as launch:
                return rate(launch)

        pairs = interleave(orch, torchrun, count)
    print_pairs(
        "iterations a second, logs and beats on, 2 ranks", "`torchrun`", Target(0.99, at_least=True),
        pairs, pairs.medians("/s", 0), load,
    )  # fmt: skip


if __name__ == "__main__":
    main()

"""Recovery after SIGKILL of a rank: orch's gang of two nodes against two agents of torchrun's c10d rendezvous.

From the kill to the moment when every rank has made a step again. A launch that does not get there within the limit
counts as no resume, and its pair has no ratio.
"""

from __future__ import annotations

import signal
import time

from launches import Launch, OrchLaunch, TorchrunLaunch, ended, two_nodes, workplace
from pairs import Load, Target, how_many, interleave, print_pairs, say

from orchestrator.node.system.processes import Process, send_signal

NODES, NPROC = 2, 2
WORLD = NODES * NPROC
STEPS_BEFORE = 25
LIMIT = 30.0
RESTARTS = 10  # more than orch is given, so that torchrun may try again while its limit lasts


def stepping(launch: Launch, after: float, steps: int) -> bool:
    """Has every rank made this many steps since?"""
    ranks = [stamp["rank"] for stamp in launch.stamps.all("step") if stamp["time"] > after]
    return all(ranks.count(rank) >= steps for rank in range(WORLD))


def firsts_after(launch: Launch, old: set[tuple[int, int]]) -> dict[int, float]:
    """When each rank has made its first step again; `old` are the ranks and pids of before."""
    found: dict[int, float] = {}
    for stamp in launch.stamps.all("step"):
        if (stamp["rank"], stamp["pid"]) not in old:
            found.setdefault(stamp["rank"], stamp["time"])
    return found


def recovery(launch: Launch, victim: int) -> float | None:
    """Kill one rank in the midst of its steps; the seconds until the last rank of the new gang has made its first."""
    if not launch.stamps.wait(lambda _: stepping(launch, 0.0, STEPS_BEFORE), LIMIT):
        raise RuntimeError(f"the ranks never stepped: {launch.stamps.out}")
    before = {stamp["rank"]: stamp for stamp in launch.stamps.all("started")}
    old = {(stamp["rank"], stamp["pid"]) for stamp in before.values()}
    killed = time.monotonic()
    send_signal(Process(before[victim]["pid"], before[victim]["started"]), signal.SIGKILL)

    def over() -> bool:
        return any(process.poll() is not None for process in launch.processes)

    launch.stamps.wait(lambda _: len(firsts_after(launch, old)) == WORLD or over(), LIMIT)
    found = firsts_after(launch, old)
    if len(found) < WORLD:
        say("torchrun gave up" if over() else f"no resume within {LIMIT:.0f} s")
        return None
    return max(found.values()) - killed


def main() -> None:
    load, count = Load(), how_many(6)
    victims = {"orch": 0, "torchrun": 0}

    def next_victim(side: str) -> int:
        victims[side] += 1
        return victims[side] % WORLD

    with workplace() as folder:

        def orch() -> float | None:
            with ended(OrchLaunch(folder, {"script": "steps.py"}, NODES, NPROC)) as launch:
                return recovery(launch, next_victim("orch"))

        def torchrun() -> float | None:
            with ended(TorchrunLaunch(folder, "steps.py", two_nodes(NPROC, restarts=RESTARTS))) as launch:
                return recovery(launch, next_victim("torchrun"))

        pairs = interleave(orch, torchrun, count)
    resumed = [sum(value is not None for value in side) for side in (pairs.ours, pairs.theirs)]
    note = f"resumed {resumed[0]} of {count} against {resumed[1]} of {count} within {LIMIT:.0f} s"
    print_pairs(
        "recovery after SIGKILL of a rank, 2 nodes of 2 ranks",
        "two agents of `torchrun --max-restarts 10`, c10d",
        Target(0.55), pairs, pairs.medians("s"), load, note,
    )  # fmt: skip


if __name__ == "__main__":
    main()

"""What sampling costs: the CPU time of a look at a node with 8 ranks, and iterations a second with and without it.

The ranks looked at are processes that sleep, with two below each. Both launches stand at the same time and take turns.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from launches import OrchLaunch
from pairs import Load, how_many, print_row
from taking_turns import compare_iterations

from orchestrator.node.agent.sampling.loop import Sampling, Started
from orchestrator.node.agent.sampling.trees import SCAN_SECONDS, RankTrees
from orchestrator.protocol.samples import FINE_SECONDS
from orchestrator.protocol.task import NodeTask, Program

RANKS, BELOW, LOOKS = 8, 2, 500
NPROC = 2
SLEEPERS = ["sh", "-c", f"{'sleep 600 & ' * BELOW} wait"]


def seconds_of_a_look() -> float:
    """Return the CPU seconds of one look with its thread, and of its share of looking for processes and of writing."""
    ranks = [subprocess.Popen(SLEEPERS, start_new_session=True) for _ in range(RANKS)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            Path(f"{folder}/nodes/0").mkdir(parents=True)
            started = Started(0, {number: rank.pid for number, rank in enumerate(ranks)})
            sampling = Sampling(_task(folder), lambda: started, lambda _: None, lambda *_, **__: None)
            begun = time.process_time()
            for _ in range(LOOKS):
                thread = threading.Thread(target=sampling.look, args=(started,))
                thread.start()
                thread.join()
            used, begun = (time.process_time() - begun) / LOOKS, time.process_time()
            RankTrees().of(started.pids, ask_for_rank=False)
            return used + (time.process_time() - begun) * FINE_SECONDS / SCAN_SECONDS
    finally:
        for rank in ranks:
            os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()


def _task(folder: str) -> NodeTask:
    return NodeTask(
        run_id="bench-sampling", node_rank=0, nnodes=1, hosts=("localhost",), nproc=RANKS, run_dir=folder,
        code_dir=folder, program=Program("command", "true"), launcher="exec", backend="gloo", python=sys.executable,
        leader_addrs=("127.0.0.1",), port_range=(15000, 32767),
    )  # fmt: skip


if __name__ == "__main__":
    load, cost = Load(), seconds_of_a_look()
    processes = sum(name.isdecimal() for name in os.listdir("/proc"))
    share = 100 * cost / FINE_SECONDS
    print_row(
        f"CPU time of a look at a node with {RANKS} ranks of {1 + BELOW} processes, {processes} on the machine",
        "-", "≤ 0.5 % of a core", f"{share:.3f} %", str(LOOKS), f"{1000 * cost:.2f} ms every {FINE_SECONDS:g} s",
        "met" if share <= 0.5 else "**falls short**", str(load),
    )  # fmt: skip
    compare_iterations(
        "iterations a second, nodes sampled every 2 s",
        "the same job with `sampling: false`",
        0.99,
        lambda folder, env: OrchLaunch(folder, {"script": "iterate.py"}, 1, NPROC, **env),
        lambda folder, env: OrchLaunch(folder, {"script": "iterate.py", "sampling": False}, 1, NPROC, **env),
        how_many(3),
    )

"""Iterations a second of the same script under orch, with logs and heartbeats, and under torchrun.

Both launches stand at the same time and take turns of a second or less; each round of turns is a pair.
"""

from __future__ import annotations

from launches import OrchLaunch, TorchrunLaunch, one_node
from pairs import how_many
from taking_turns import compare_iterations

NPROC = 2

if __name__ == "__main__":
    compare_iterations(
        f"iterations a second, logs and beats on, {NPROC} ranks",
        "`torchrun`",
        0.99,
        lambda folder, env: OrchLaunch(folder, {"script": "iterate.py"}, 1, NPROC, **env),
        lambda folder, env: TorchrunLaunch(folder, "iterate.py", one_node(NPROC), **env),
        how_many(10),
    )

"""Iterations a second under orch while rank 0 prints 200 MB a minute, and while it prints next to nothing.

Both launches stand at the same time and take turns; each round of turns is a pair.
"""

from __future__ import annotations

from launches import OrchLaunch
from pairs import how_many
from taking_turns import compare_iterations

NPROC = 2
FLOOD = 200 * 1024**2 // 60  # bytes a second

if __name__ == "__main__":
    compare_iterations(
        "iterations a second, rank 0 prints 200 MB a minute",
        "the same job, quiet",
        0.98,
        lambda folder, env: OrchLaunch(folder, {"script": "iterate.py"}, 1, NPROC, BENCH_FLOOD=str(FLOOD), **env),
        lambda folder, env: OrchLaunch(folder, {"script": "iterate.py"}, 1, NPROC, **env),
        how_many(6),
    )

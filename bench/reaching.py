"""How long it takes to reach three hosts over SSH with keys, against the sources of another commit.

git archive --prefix=other/ COMMIT | tar -x -C bench && python bench/reaching.py --against bench/other
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lab import on_the_testbed, scratch
from pairs import ROOT, Load, Target, interleave, print_pairs

HOSTS = ["n1", "n2", "n3"]


def seconds(sources: Path, folder: Path, words: Sequence[str]) -> float:
    """The time of the whole command, with these sources and with a state folder of their own."""
    env = {**os.environ, "PYTHONPATH": str(sources), "ORCH_HOME": str(scratch() / sources.name)}
    begun = time.monotonic()
    argv = [sys.executable, "-m", "orchestrator.cli", *words]
    done = subprocess.run(argv, env=env, cwd=folder, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    took = time.monotonic() - begun
    if done.returncode:
        sys.exit(f"orch of {sources.name}: {done.stderr.decode()}")
    return took


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--against", type=Path, required=True)
    options.add_argument("--pairs", type=int, default=20)
    if not on_the_testbed(3):
        return
    given = options.parse_args()
    theirs = ROOT / given.against
    folder = scratch() / "project"
    folder.mkdir()
    profile = {"kind": "ssh", "hosts": HOSTS, "nproc_per_node": 1, "python": "python3"}
    (folder / "lab.yaml").write_text(json.dumps(profile))
    (folder / "job.yaml").write_text(json.dumps({"command": ["true"]}))
    for words in (["nodes", "--profile", "lab.yaml"], ["submit", "job.yaml", "--profile", "lab.yaml"]):
        for sources in (ROOT, theirs):  # what is sent once
            seconds(sources, folder, words)
        load = Load()
        ours, other = partial(seconds, ROOT, folder, words), partial(seconds, theirs, folder, words)
        pairs = interleave(ours, other, given.pairs)
        what = f"`orch {words[0]}` for three hosts with keys, until it returns"
        print_pairs(what, "the commit before", Target(1.05), pairs, pairs.medians("s"), load)


if __name__ == "__main__":
    main()

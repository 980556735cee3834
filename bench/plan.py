"""How long `orch plan --json` takes for 4,000 nodes of 8 ranks, and how many bytes it prints."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from pairs import Load, how_many, print_row, program

NODES, NPROC = 4_000, 8
SECONDS, MEGABYTES = 1.0, 10.0


def main() -> None:
    load, count = Load(), how_many(10)
    taken, size = [], 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        profile = {"kind": "ssh", "hosts": [f"n[1-{NODES}]"], "nproc_per_node": NPROC}
        (folder / "many.yaml").write_text(json.dumps(profile))
        (folder / "job.yaml").write_text(json.dumps({"command": ["true"]}))
        argv = [program("orch"), "plan", str(folder / "job.yaml"), "-p", str(folder / "many.yaml"), "--json"]
        for _ in range(count):
            begun = time.monotonic()
            done = subprocess.run(argv, env={**os.environ, "ORCH_HOME": name}, capture_output=True, check=True)
            taken.append(time.monotonic() - begun)
            size = len(done.stdout)
        plan = json.loads(done.stdout)
        assert (len(plan["tasks"]), plan["shared"]["nproc"]) == (NODES, NPROC)
    middle, millions = statistics.median(taken), size / 1e6
    verdict = "met" if middle <= SECONDS and millions <= MEGABYTES else "**falls short**"
    shown = f"{middle:.2f} s ({min(taken):.2f}-{max(taken):.2f}), {millions:.1f} MB"
    print_row(f"`orch plan --json`, {NODES:,} nodes of {NPROC} ranks", "-", f"≤ {SECONDS:g} s, {MEGABYTES:g} MB", shown,
              str(count), "-", f"{verdict}; no peer: a time, not a ratio", str(load))  # fmt: skip


if __name__ == "__main__":
    main()

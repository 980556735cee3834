"""On the testbed's Slurm: submit against bare sbatch, joining against `srun torchrun`, and 500 runs at once.

Both sides of the second row ask for the same allocation, and find the cluster empty. A point of the array is held back
for an hour, so that 500 runs are live, and none of them runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from lab import on_the_testbed
from launches import PROGRAMS, Stamps, environment, timed_run
from pairs import ROOT, Load, Pairs, Target, how_many, interleave, print_pairs, print_row

from orchestrator.runs.sweeps import points_in

NODES, NPROC, POINTS = 3, 4, 500
MOST_MS = 150
ORCH = [sys.executable, "-m", "orchestrator.cli"]
TORCHRUN = """#!/bin/bash
#SBATCH --nodes={nodes} --ntasks-per-node=1 --cpus-per-task={nproc} --output={folder}/torchrun.log
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --kill-on-bad-exit=1 {python} -m torch.distributed.run --nnodes={nodes} --nproc-per-node={nproc} \\
  --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$head:{port}" {script}
"""


class Site:
    """alice's shared folder: the programs, a profile, and a store of runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        shutil.copytree(PROGRAMS, folder / "code", ignore=shutil.ignore_patterns("__pycache__"))
        profile = {"kind": "slurm", "nodes": NODES, "nproc_per_node": NPROC, "time": "10m"}
        (folder / "slurm.yaml").write_text(json.dumps(profile))
        held = {**profile, "nodes": 1, "nproc_per_node": 1, "sbatch": {"begin": "now+1hour"}}
        (folder / "held.yaml").write_text(json.dumps(held))

    def job(self, name: str, job: dict[str, object], out: Path) -> str:
        words = {"OMP_NUM_THREADS": "1", "BENCH_OUT": str(out), "PYTHONPATH": str(self.folder / "code")}
        path = self.folder / "code" / f"{name}.yaml"
        path.write_text(json.dumps({**job, "env": words}))
        return str(path)

    def environment(self, out: Path) -> dict[str, str]:
        return {**environment(self.folder, out), "PYTHONPATH": str(ROOT)}

    def orch(self, *words: str, home: Path | None = None) -> str:
        shell = {**self.environment(self.folder), "ORCH_HOME": str(home or self.home)}
        done = subprocess.run([*ORCH, *words], env=shell, capture_output=True, text=True, check=True, timeout=300)
        return done.stdout.strip()


@contextlib.contextmanager
def site() -> Iterator[Site]:
    """The folder, and nothing of it afterwards: no job, no file."""
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir="/shared"))
    try:
        yield Site(folder)
    finally:
        subprocess.run(["scancel", f"--user={os.getuid()}"], check=False)
        wait_until_empty()
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_empty() -> None:
    """Return when the queue has no job."""
    while subprocess.run(["squeue", "--noheader"], capture_output=True, check=False, timeout=60).stdout:
        time.sleep(0.2)  # Slurm tells nobody of a job's end


def submitting(here: Site, count: int) -> None:
    """What orch adds to sbatch and the import of submitit, until the command returns."""
    load = Load()
    job = here.job("true", {"command": ["true"]}, here.folder)
    script = here.folder / "bare.sh"
    script.write_text(f"#!/bin/bash\n#SBATCH --nodes={NODES} --begin=now+1hour --output=/dev/null\nsrun true\n")
    shell = here.environment(here.folder)
    profile = str(here.folder / "held.yaml")

    def orch() -> float:
        return timed_run([*ORCH, "submit", job, "-p", profile], shell)

    def bare() -> float:
        return timed_run(["sbatch", str(script)], shell) + timed_run([sys.executable, "-c", "import submitit"], shell)

    orch()  # the first one makes the store and starts the supervisor
    pairs = interleave(orch, bare, count)
    more = [1000 * (a - b) for a, b in zip(pairs.ours, pairs.theirs, strict=True) if a is not None and b is not None]
    middle = statistics.median(more)
    verdict = "met" if middle <= MOST_MS else "**falls short**"
    shown = f"{middle:+.0f} ms ({min(more):+.0f} to {max(more):+.0f})"
    print_row("`orch submit` to Slurm until it returns", "`sbatch`, and `python -c \"import submitit\"`",
              f"≤ {MOST_MS:+d} ms", shown, str(count), pairs.medians("s"), f"{verdict}; a difference, not a ratio",
              str(load))  # fmt: skip
    subprocess.run(["scancel", f"--user={os.getuid()}"], check=False)
    wait_until_empty()


def joining(here: Site, count: int) -> None:
    """From the command to the moment when all ranks of 3 x 4 have joined."""
    load = Load()

    def joined(stamps: Stamps, begun: float) -> float | None:
        came = stamps.wait(lambda found: len(found.all("joined")) == NODES * NPROC, 120)
        (stamps.out / "release").touch()
        wait_until_empty()
        return float(stamps.all("joined")[-1]["time"] - begun) if came else None

    def out_of(name: str) -> Path:
        out = here.folder / f"{name}-{time.monotonic_ns()}"
        out.mkdir()
        return out

    def orch() -> float | None:
        out = out_of("orch")
        job = here.job("join", {"script": "join.py"}, out)
        begun = time.monotonic()
        here.orch("submit", job, "-p", str(here.folder / "slurm.yaml"))
        return joined(Stamps(out), begun)

    def torchrun() -> float | None:
        out = out_of("torchrun")
        script = out / "job.sh"
        words = {"nodes": NODES, "nproc": NPROC, "python": sys.executable, "folder": out}
        port = 20000 + time.monotonic_ns() % 10000
        script.write_text(TORCHRUN.format(**words, port=port, script=here.folder / "code" / "join.py"))
        begun = time.monotonic()
        subprocess.run(["sbatch", str(script)], env=here.environment(out), check=True, capture_output=True, timeout=60)
        return joined(Stamps(out), begun)

    pairs = interleave(orch, torchrun, count)
    print_pairs(f"submit to all {NODES} x {NPROC} ranks joined, on Slurm", "`sbatch` of `srun torchrun`, c10d",
                Target(0.6), pairs, pairs.medians("s"), load)  # fmt: skip


def many(here: Site, count: int) -> None:
    """A 500-point array in one call, and `orch status` while all its runs wait."""
    load = Load()
    job = here.job("true", {"command": ["true"]}, here.folder)
    begun = time.monotonic()
    sweep = here.orch("submit", job, "-p", str(here.folder / "held.yaml"), "--sweep", f"job.env.N=1..{POINTS}")
    taken = time.monotonic() - begun
    listed = subprocess.run(["squeue", "--noheader", "--array"], capture_output=True, text=True, check=True, timeout=60)
    assert len(points_in(here.home, sweep)) == len(listed.stdout.splitlines()) == POINTS
    print_row(f"`orch submit --sweep`, {POINTS} points, until it returns", "-", "one call", f"{taken:.1f} s", "1", "-",
              "met: one array, one `sbatch`; a time, not a ratio", str(load))  # fmt: skip
    load, shell = Load(), here.environment(here.folder)
    empty = {**shell, "ORCH_HOME": str(here.folder / "empty")}

    def status() -> float:
        return timed_run([*ORCH, "status"], shell)

    def squeue() -> float:
        return timed_run(["squeue", "--array", "--states=all"], shell) + timed_run([*ORCH, "status"], empty)

    pairs: Pairs = interleave(status, squeue, count)
    print_pairs(f"`orch status` of {POINTS} live Slurm runs", "`squeue`, and `orch status` of an empty store",
                Target(1.3), pairs, pairs.medians("s", 3), load)  # fmt: skip
    here.orch("cancel", sweep, "--now")


def main() -> None:
    if not on_the_testbed(NODES, slurm=True):
        return
    count = how_many(10)
    with site() as here:
        submitting(here, count)
        joining(here, count)
        many(here, count)


if __name__ == "__main__":
    main()

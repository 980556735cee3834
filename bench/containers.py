"""What a Docker container adds over SSH, on the testbed: from submit to joined on one node, and in training throughput.

Both sides are the same job on the same host, with and without its container; the image is there already, and the
interpreter and torch are this machine's in both.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from lab import on_the_testbed, scratch
from pairs import Load, Pairs, Target, how_many, print_pairs, print_row, program, say

from tests.testbed import images

SECONDS, NPROC, MOST = 180.0, 2, 1.5
STAMPS = Path("/shared/bench")
PROGRAM = f"""
import json, os, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
dist.barrier()
joined = time.monotonic()
torch.manual_seed(0)
layers = nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 26 * 26, 10)
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
images, labels = torch.randn(32, 1, 28, 28), torch.arange(32) % 10
def steps(count):
    for _ in range(count):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
steps(20)
begun = time.monotonic()
steps(300)
rate = 300 / (time.monotonic() - begun)
path = "{STAMPS}/" + os.environ["RANK"]
open(path + ".new", "w").write(json.dumps([joined, rate]))
os.replace(path + ".new", path)
dist.barrier()
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Run:
    """Seconds from the command to the last rank's join, and iterations a second."""

    joined: float
    rate: float


def measure(folder: Path, runtime: str) -> Run | None:
    """One run of the program with this runtime; None where it did not get there."""
    for path in STAMPS.iterdir():
        path.unlink()
    job: dict[str, object] = {"name": "bench", "script": "main.py", "env": {"OMP_NUM_THREADS": "1"}}
    if runtime != "none":
        # The stamps' folder is the testbed's own, and no part of a run.
        mounts = [*(f"{path}:{path}:ro" for path in images.mounts()), f"{STAMPS}:{STAMPS}"]
        job["container"] = {"image": images.BASE, "pull": "never", "mounts": mounts}
    (folder / "main.py").write_text(PROGRAM)
    (folder / f"{runtime}.yaml").write_text(json.dumps(job))
    profile = {"kind": "ssh", "hosts": ["n1"], "nproc_per_node": NPROC, "python": sys.executable, "runtime": runtime}
    (folder / "host.yaml").write_text(json.dumps(profile))
    argv = [program("orch"), "submit", str(folder / f"{runtime}.yaml"), "-p", str(folder / "host.yaml"), "--json"]
    begun = time.monotonic()
    submitted = subprocess.run(argv, capture_output=True, check=True)
    run = json.loads(submitted.stdout)["run_id"]
    subprocess.run([program("orch"), "wait", run, "--timeout", str(SECONDS)], capture_output=True, check=False)
    stamps = [json.loads(path.read_text()) for path in STAMPS.iterdir() if path.name.isdigit()]
    if len(stamps) < NPROC:
        return None
    return Run(max(joined for joined, _ in stamps) - begun, min(rate for _, rate in stamps))


def main() -> None:
    if not on_the_testbed(1, docker=True):
        return
    count, folder, load = how_many(8), scratch(), Load()
    STAMPS.mkdir(exist_ok=True)
    STAMPS.chmod(0o777)
    measure(folder, "docker"), measure(folder, "none")  # both read torch from the disk once
    found: list[tuple[Run, Run]] = []
    for number in range(1, count + 1):
        inside, outside = measure(folder, "docker"), measure(folder, "none")
        say(f"pair {number} of {count}: {inside} against {outside}")
        if inside is not None and outside is not None:
            found.append((inside, outside))
    added = [inside.joined - outside.joined for inside, outside in found]
    if not added:
        say("not measured: no run got there")
        sys.exit(1)
    middle = statistics.median(added)
    joined = Pairs([inside.joined for inside, _ in found], [outside.joined for _, outside in found])
    shown = f"{middle:+.2f} s ({min(added):+.2f} to {max(added):+.2f})"
    verdict = "met" if middle <= MOST else "**falls short**"
    what = f"submit to joined in a container, one node of {NPROC} ranks over SSH"
    print_row(what, "runtime none", f"≤ {MOST} s more", shown, str(len(added)), joined.medians("s"), verdict, str(load))
    rates = Pairs([inside.rate for inside, _ in found], [outside.rate for _, outside in found])
    what = f"iterations a second in a container, {NPROC} ranks"
    print_pairs(what, "runtime none", Target(0.98, at_least=True), rates, rates.medians("/s", 0), load)


if __name__ == "__main__":
    main()

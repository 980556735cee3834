"""Over SSH, on the testbed: submit to joined on three hosts against torchrun by hand, and a line's way to the screen.

torchrun is started on the three hosts at once over connections that stand already; orch sends the agent and the code,
and checks every host. The ranks stamp their lines with the machine's clock, which all hosts share.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from lab import on_the_testbed, scratch
from pairs import Load, Target, how_many, interleave, print_pairs, print_row, program

HOSTS, NPROC, SECONDS, LINES = ("n1", "n2", "n3"), 4, 120.0, 60
STAMPS = Path("/shared/bench")
JOIN = f"""
import os, time
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
path = "{STAMPS}/" + os.environ["RANK"]
open(path + ".new", "w").write(repr(time.time()))
os.replace(path + ".new", path)
dist.barrier()
dist.destroy_process_group()
"""
TALK = f"""
import time
for number in range({LINES}):
    time.sleep(0.25)
    print("line", repr(time.time()), flush=True)
"""
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ControlPath=~/.ssh/bench-%h")


def joined(begun: float) -> float | None:
    """Seconds until the last rank had joined."""
    end = time.monotonic() + SECONDS
    while len(found := [path for path in STAMPS.iterdir() if path.name.isdigit()]) < len(HOSTS) * NPROC:
        if time.monotonic() > end:
            return None
        time.sleep(0.02)
    return max(float(path.read_text()) for path in found) - begun


def submit(folder: Path, code: str, nproc: int, hosts: tuple[str, ...]) -> str:
    """Submit the program; the run's id."""
    (folder / "main.py").write_text(code)
    env = {"OMP_NUM_THREADS": "1"}
    (folder / "job.yaml").write_text(json.dumps({"name": "bench", "script": "main.py", "env": env}))
    profile = {"kind": "ssh", "hosts": list(hosts), "nproc_per_node": nproc, "python": sys.executable}
    (folder / "hosts.yaml").write_text(json.dumps(profile))
    argv = [program("orch"), "submit", str(folder / "job.yaml"), "-p", str(folder / "hosts.yaml"), "--json"]
    return str(json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)["run_id"])


def orch(folder: Path) -> float | None:
    """The product, from the command on."""
    forget()
    begun = time.time()
    run = submit(folder, JOIN, NPROC, HOSTS)
    seconds = joined(begun)
    subprocess.run([program("orch"), "wait", run], capture_output=True, check=True)
    return seconds


def torchrun(folder: Path) -> float | None:
    """The peer: the script lies on the hosts, and the three commands are given at once."""
    forget()
    port = 20000 + os.getpid() % 1000 + int(time.time()) % 1000
    options = f"--nnodes {len(HOSTS)} --nproc-per-node {NPROC} --master-addr n1 --master-port {port}"
    command = f"cd .bench && OMP_NUM_THREADS=1 {program('torchrun')} {options}"
    with open(folder / "torchrun.log", "wb") as log:
        begun = time.time()
        started = [
            subprocess.Popen([*SSH, host, f"{command} --node-rank {rank} main.py"], stdout=log, stderr=log)
            for rank, host in enumerate(HOSTS)
        ]
        seconds = joined(begun)
        for process in started:
            if process.wait(SECONDS) != 0:
                raise RuntimeError((folder / "torchrun.log").read_text()[-2000:])
    return seconds


def forget() -> None:
    """Nothing has joined."""
    for path in STAMPS.iterdir():
        path.unlink()


def delays(folder: Path) -> list[float]:
    """Of each line that `orch logs --follow` shows: seconds from its print to here."""
    run = submit(folder, TALK, 1, HOSTS[:1])
    found = []
    argv = [program("orch"), "logs", run, "--follow"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as follow:
        assert follow.stdout is not None
        for line in follow.stdout:
            if line.startswith("line "):
                found.append(time.time() - float(line.split()[1]))
    return found


def main() -> None:
    if not on_the_testbed(len(HOSTS)):
        return
    count, folder = how_many(6), scratch()
    STAMPS.mkdir(exist_ok=True)
    STAMPS.chmod(0o777)
    masters = [subprocess.Popen([*SSH, "-o", "ControlMaster=yes", "-N", host]) for host in HOSTS]
    try:
        (folder / "main.py").write_text(JOIN)
        for host in HOSTS:
            subprocess.run([*SSH, host, "mkdir -p .bench && cat >.bench/main.py"], input=JOIN.encode(), check=True)
        load = Load()
        orch(folder), torchrun(folder)  # both read torch from the disk once, and orch sends its agent
        pairs = interleave(lambda: orch(folder), lambda: torchrun(folder), count)
        what = f"submit to joined over SSH, {len(HOSTS)} hosts x {NPROC} ranks"
        against = "`torchrun` by hand on the three hosts at once, over connections that stand"
        print_pairs(what, against, Target(0.6), pairs, pairs.medians("s"), load)
    finally:
        for master in masters:
            master.terminate()
            master.wait()
    load, found = Load(), delays(folder)
    middle = statistics.median(found[LINES // 4 :])  # the first ones were printed before anybody looked
    shown = f"{middle:.3f} s ({min(found[LINES // 4 :]):.3f}-{max(found[LINES // 4 :]):.3f})"
    verdict = "met" if middle <= 0.3 else "**falls short**"
    what = "a rank's line, from print to the screen of `orch logs --follow`"
    print_row(what, "-", "≤ 0.3 s", "-", str(len(found[LINES // 4 :])), shown, verdict, str(load))


if __name__ == "__main__":
    main()

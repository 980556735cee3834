"""What orch costs on a login node: processor time, memory and connections of one run, and of several at once.

It needs the testbed (docs/testbed.md): `tests/testbed/alone .venv/bin/python -m bench.login_node [RUNS] [MINUTES]`. The
laptop is n4. The runs wait or sleep, so that only orch's own work is measured on ctl.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from tests.cluster.control import Control
from tests.testbed import cluster
from tests.testbed.layout import Cluster, state_folder
from tests.testbed.machine import wait_until

LAPTOP, LOGIN, HOME = "n4", "ctl", "/home/alice"
TICKS = os.sysconf("SC_CLK_TCK")
DIALLED = '[ "$(cat /proc/$PPID/comm)" != sshd ] || echo one >>~/dialled\n'


def processes(control: Control) -> list[int]:
    """The pids of alice's processes on the login node: those of sshd and of orch's server."""
    return [each.pid for each in control.processes(LOGIN, "alice")]


def seconds(pids: list[int]) -> float:
    """The processor time of these processes, with that of their children that have ended."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))
    return total / TICKS


def memory(pids: list[int]) -> float:
    """The memory of these processes in MiB; shared pages are divided among those that share them."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def main(runs: int, minutes: float) -> None:
    control = Control(cluster.up(Cluster(state_folder(), 4)))
    try:
        control.file(LOGIN, f"{HOME}/.bashrc").write_text(DIALLED)
        folder = control.file(LAPTOP, f"{HOME}/job")
        folder.mkdir()
        (folder / "sleep.py").write_text("import time\nwhile True:\n    print('x', flush=True)\n    time.sleep(1)\n")
        (folder / "job.yaml").write_text(json.dumps({"script": "sleep.py", "launcher": "exec"}))
        profile = {"kind": "slurm", "login": "alice@ctl", "workdir": "/shared/orch", "nodes": 1, "nproc_per_node": 1,
                   "exclude": LAPTOP, "time": "1h", "python": sys.executable, "cpus_per_task": 1,
                   "sbatch": {"overcommit": True}}  # fmt: skip
        (folder / "far.yaml").write_text(json.dumps(profile))
        queue = ("squeue", "--noheader", "--user=alice", "--states=RUNNING")
        for count in (1, runs):
            have = len(control.orch("status", "--json", host=LAPTOP, timeout=300).json or [])
            for _ in range(count - have):
                done = control.orch("submit", "job/job.yaml", "-p", "job/far.yaml", host=LAPTOP, timeout=300)
                assert done.code == 0, done.err
            print(f"{count} submitted", flush=True)
            most = min(count, 24)
            wait_until(lambda most=most: len(control.output(LOGIN, *queue).splitlines()) >= most, "the jobs")
            time.sleep(10)  # the first copies
            dialled = control.file(LOGIN, f"{HOME}/dialled")
            pids, lines, begun = processes(control), len(dialled.read_text().splitlines()), time.monotonic()
            before = seconds(pids)
            time.sleep(60 * minutes)
            took = time.monotonic() - begun
            now, spent = processes(control), seconds(processes(control)) - before
            more = len(dialled.read_text().splitlines()) - lines
            running = len(control.output(LOGIN, *queue).splitlines())
            print(f"{count} runs, {running} of them running, measured over {took / 60:.1f} min: "
                  f"{spent / took * 100:.2f} % of a core, {memory(now):.0f} MiB in {len(now)} processes, "
                  f"{more} connections in that time, {lines + more} since the first submit", flush=True)  # fmt: skip
    finally:
        cluster.down()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50, float(sys.argv[2]) if len(sys.argv) > 2 else 2.0)

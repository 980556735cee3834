"""What 50 live runs over SSH cost the supervisor: memory and CPU a run; on the testbed. A run prints a line a second.

The supervisor is looked at with one live run and with all of them, for as long; the difference is what a run costs.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab import on_the_testbed, scratch
from launches import supervisor_of
from pairs import Load, how_many, print_row, program, say
from startup import MIB, rollup

HOSTS, SECONDS = ("n1", "n2", "n3"), 30.0
TICK = "while sleep 1; do echo tick; done"


def submit(folder: Path, number: int) -> str:
    """Start one more run; its id."""
    profile = folder / f"host{number % len(HOSTS)}.yaml"
    profile.write_text(json.dumps({"kind": "ssh", "hosts": [HOSTS[number % len(HOSTS)]], "nproc_per_node": 1}))
    argv = [program("orch"), "submit", str(folder / "job.yaml"), "-p", str(profile), "--json"]
    return str(json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)["run_id"])


def cancel(run: str) -> None:
    """End it."""
    subprocess.run([program("orch"), "cancel", run, "--now"], capture_output=True, check=False)


def running() -> int:
    """How many runs are running."""
    argv = [program("orch"), "status", "--all", "--json"]
    states = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
    return sum(state["state"] == "running" for state in states)


def settled(count: int) -> None:
    """Return when so many runs are running."""
    end = time.monotonic() + 120
    while running() < count:
        if time.monotonic() > end:
            raise RuntimeError(f"only {running()} of {count} runs are running")
        time.sleep(1)
    time.sleep(5)  # what starting them has left to do is done


def cost() -> tuple[float, float]:
    """(private memory in MiB, CPU as a part of one core) of the supervisor."""
    found = supervisor_of(Path.home() / ".local/state/orch")
    if found is None:
        raise RuntimeError("no supervisor is there")
    before, begun = ticks(found.pid), time.monotonic()
    time.sleep(SECONDS)
    used = (ticks(found.pid) - before) / os.sysconf("SC_CLK_TCK")
    return rollup(found.pid, "Private_Clean", "Private_Dirty") / MIB, used / (time.monotonic() - begun)


def ticks(pid: int) -> int:
    """The process's CPU time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def main() -> None:
    if not on_the_testbed(len(HOSTS)):
        return
    count, folder, load = how_many(50), scratch(), Load()
    (folder / "job.yaml").write_text(json.dumps({"name": "tick", "command": ["sh", "-c", TICK]}))
    runs = [submit(folder, 0)]
    try:
        settled(1)
        one = cost()
        with ThreadPoolExecutor(len(HOSTS)) as pool:
            runs += pool.map(lambda number: submit(folder, number), range(1, count))
        settled(count)
        many = cost()
    finally:
        with ThreadPoolExecutor(len(HOSTS)) as pool:
            list(pool.map(cancel, runs))
    say(f"one run: {one}, {count} runs: {many}")
    memory, cpu = ((many[place] - one[place]) / (count - 1) for place in (0, 1))
    medians = f"{memory:.1f} MiB and {cpu:.2%} of a core a run"
    notes = f"no target; in all {many[0]:.0f} MiB and {many[1]:.0%}, with one run {one[0]:.0f} MiB and {one[1]:.1%}"
    print_row(f"the supervisor with {count} live runs over SSH", "with one", "-", "-", "1", medians, notes, str(load))


if __name__ == "__main__":
    main()

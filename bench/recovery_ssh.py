"""Recovery after SIGKILL of a rank on machines of their own: orch over SSH against torchrun's c10d; on the testbed.

As recovery.py, but for two hosts: orch submits from a third one, torchrun is started by hand on both.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from lab import on_the_testbed
from launches import COMMON, PROGRAMS, Launch, ended, program
from pairs import Load, Target, how_many, interleave, print_pairs, say
from recovery import LIMIT, NPROC, RESTARTS, STEPS_BEFORE, WORLD, firsts_after, stepping

HOSTS = ("n1", "n2")
RENDEZVOUS = "10.90.0.11:29400"  # n1, where nothing else listens
KILL = "import os, sys, time; print(time.monotonic()); os.kill(int(sys.argv[1]), 9)"


def on_host(host: str, *argv: str) -> str:
    """What a command on a host prints."""
    done = subprocess.run(["ssh", host, shlex.join(argv)], capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip()


def host_of(rank: int) -> str:
    return HOSTS[rank // NPROC]


class SshLaunch(Launch):
    """A start on two hosts, whose ranks write their stamps into a folder that all hosts see."""

    def end_ranks(self) -> None:
        """KILL to every rank that is still there, by its id and its host."""
        for stamp in self.stamps.all("started"):
            found = on_host(host_of(stamp["rank"]), "cat", f"/proc/{stamp['pid']}/stat")
            if found and found.rpartition(")")[2].split()[19] == str(stamp["started"]):
                on_host(host_of(stamp["rank"]), "kill", "-9", str(stamp["pid"]))


class Orch(SshLaunch):
    """A job submitted over SSH."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / f"out-{time.monotonic_ns()}")
        words = {**COMMON, "BENCH_OUT": str(self.stamps.out)}
        job = {"name": "bench", "script": "steps.py", "env": words}
        profile = {"kind": "ssh", "hosts": list(HOSTS), "nproc_per_node": NPROC, "python": sys.executable}
        (folder / "code" / "job.yaml").write_text(json.dumps(job))
        (folder / "profile.yaml").write_text(json.dumps(profile))
        argv = [program("orch"), "submit", str(folder / "code" / "job.yaml"), "-p", str(folder / "profile.yaml")]
        done = subprocess.run([*argv, "--json"], capture_output=True, text=True, check=False, timeout=60)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        self.run_id = json.loads(done.stdout)["run_id"]

    def end(self) -> None:
        """Cancel the run, which proves that nothing of it is left."""
        argv = [program("orch"), "cancel", self.run_id, "--now"]
        subprocess.run(argv, capture_output=True, check=False, timeout=120)


class Torchrun(SshLaunch):
    """The same program under torchrun, one agent a host."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / f"out-{time.monotonic_ns()}")
        for host in HOSTS:
            options = ["--nnodes", "2", "--nproc-per-node", str(NPROC), "--max-restarts", str(RESTARTS)]
            options += ["--rdzv-backend", "c10d", "--rdzv-id", self.stamps.out.name, "--rdzv-endpoint", RENDEZVOUS]
            options += ["--rdzv-conf", f"is_host={int(host == HOSTS[0])}"]
            words = [f"{name}={value}" for name, value in {**COMMON, "BENCH_OUT": str(self.stamps.out)}.items()]
            argv = ["env", *words, program("torchrun"), *options, str(folder / "code" / "steps.py")]
            line = f"echo $$ > {self.stamps.out}/{host}.pid; exec {shlex.join(argv)}"
            with open(self.stamps.out / f"{host}.log", "wb") as log:
                self.processes.append(subprocess.Popen(["ssh", host, line], stdout=log, stderr=log))

    def end(self) -> None:
        """TERM, then KILL, by the recorded ids."""
        for host in HOSTS:
            with contextlib.suppress(OSError):
                on_host(host, "kill", (self.stamps.out / f"{host}.pid").read_text().strip())
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
        for host in HOSTS:
            with contextlib.suppress(OSError):
                on_host(host, "kill", "-9", (self.stamps.out / f"{host}.pid").read_text().strip())
        self.end_ranks()


def recovery(launch: Launch, victim: int) -> float | None:
    """Kill one rank in the midst of its steps; the seconds until the last rank of the new gang has made its first."""
    if not launch.stamps.wait(lambda _: stepping(launch, 0.0, STEPS_BEFORE), 4 * LIMIT):
        raise RuntimeError(f"the ranks never stepped: {launch.stamps.out}")
    before = {stamp["rank"]: stamp for stamp in launch.stamps.all("started")}
    old = {(stamp["rank"], stamp["pid"]) for stamp in before.values()}
    killed = float(on_host(host_of(victim), "python3", "-c", KILL, str(before[victim]["pid"])))
    launch.stamps.wait(lambda _: len(firsts_after(launch, old)) == WORLD, LIMIT)
    found = firsts_after(launch, old)
    if len(found) < WORLD:
        say(f"no resume within {LIMIT:.0f} s")
        return None
    return max(found.values()) - killed


@contextlib.contextmanager
def shared_workplace() -> Iterator[Path]:
    """A folder with the programs that all hosts see, gone with the block."""
    folder = Path(tempfile.mkdtemp(prefix="orch-bench-", dir="/shared"))
    try:
        shutil.copytree(PROGRAMS, folder / "code", ignore=shutil.ignore_patterns("__pycache__"))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    load, count, victims = Load(), how_many(6), {"orch": 0, "torchrun": 0}
    with shared_workplace() as folder:

        def one(side: str, start: type[Orch] | type[Torchrun]) -> float | None:
            victims[side] += 1
            with ended(start(folder)) as launch:
                return recovery(launch, victims[side] % WORLD)

        pairs = interleave(lambda: one("orch", Orch), lambda: one("torchrun", Torchrun), count)
    resumed = [sum(value is not None for value in side) for side in (pairs.ours, pairs.theirs)]
    note = f"resumed {resumed[0]} of {count} against {resumed[1]} of {count} within {LIMIT:.0f} s"
    print_pairs(
        "recovery after SIGKILL of a rank over SSH, 2 hosts of 2 ranks",
        "`torchrun --max-restarts 10` on both hosts, c10d",
        Target(0.55), pairs, pairs.medians("s"), load, note,
    )  # fmt: skip


if __name__ == "__main__" and on_the_testbed(nodes=2):
    main()

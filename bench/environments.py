"""The environment of 60 small wheels on three machines, against rsync and uv by hand; and what it costs once there.

On the testbed. Ours is what a submit does for a run's environment, with connections made anew: each machine asked, the
wheels that it lacks sent, uv run there, what it has made recorded. By hand is `rsync -a` of the same wheels, then `uv
venv` and `uv pip sync` over ssh, on all machines at once; both have uv there, and neither has a wheel.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab import needed, on_the_testbed, scratch
from pairs import Load, Target, how_many, interleave, print_pairs, print_row

from orchestrator.backends.environments import with_environment
from orchestrator.environments.lock import Lock
from orchestrator.environments.packages import record_lock
from orchestrator.environments.uv import find_uv
from orchestrator.protocol.task import NodeTask, Program
from orchestrator.runs.store import RunDir
from orchestrator.transport.address import Address
from orchestrator.transport.pool import ConnectionPool
from tests import wheels

HOSTS, COUNT, SIZE = ("n1", "n2", "n3"), 60, 100_000
UV_OPTIONS = "--offline --no-config --quiet"
ONCE_MORE = 0.3


def on_hosts(command: str) -> None:
    """Run a shell line on all hosts at once."""

    def one(host: str) -> None:
        subprocess.run(["ssh", host, command], check=True)

    with ThreadPoolExecutor(len(HOSTS)) as pool:
        list(pool.map(one, HOSTS))


def a_run(folder: Path, lock: str) -> RunDir:
    """A recorded run, as far as its environment is concerned."""
    run = RunDir(folder / "root" / "runs" / "bench")
    run.path.mkdir(parents=True)
    run.write("run.json", {"run_id": "bench", "kind": "ssh", "job": {"environment": {}}, "nnodes": len(HOSTS)})
    record_lock(run, Lock("requirements.txt", lock, "", str(folder)))
    return run


def tasks(run: RunDir) -> tuple[NodeTask, ...]:
    return tuple(
        NodeTask(
            run.run_id, rank, len(HOSTS), HOSTS, 1, "~/.orch/runs/bench", "~/.orch/runs/bench/code",
            Program("script", "main.py"), "exec", "gloo", sys.executable, (), (0, 0),
        )
        for rank in range(len(HOSTS))
    )  # fmt: skip


def install(run: RunDir) -> None:
    with contextlib.closing(ConnectionPool()) as pool:
        machines = {rank: pool.session(Address(host), "~/.orch") for rank, host in enumerate(HOSTS)}
        with_environment(run, tasks(run), machines, "~/.orch")


def by_hand(folder: Path) -> None:
    uv = find_uv()
    env = f"{shlex.quote(str(uv))} venv {UV_OPTIONS} --python {shlex.quote(sys.executable)} bench/env"
    sync = f"{shlex.quote(str(uv))} pip sync {UV_OPTIONS} --no-index --find-links bench/wheels --require-hashes"

    def one(host: str) -> None:
        subprocess.run(["rsync", "-a", f"{folder}/wheels", f"{folder}/hashed.txt", f"{host}:bench/"], check=True)
        words = f"{env} && {sync} --python bench/env/bin/python bench/hashed.txt"
        subprocess.run(["ssh", host, words], check=True)

    with ThreadPoolExecutor(len(HOSTS)) as pool:
        list(pool.map(one, HOSTS))


def seconds(work: object, *args: object) -> float:
    begun = time.monotonic()
    work(*args)  # type: ignore[operator]
    return time.monotonic() - begun


def submitted(folder: Path, job: Path) -> float:
    """How long a submit takes to return; its run is over before this does."""
    orch = [sys.executable, "-m", "orchestrator.cli"]
    begun = time.monotonic()
    done = subprocess.run([*orch, "submit", job, "-p", folder / "lab.yaml", "--json"], check=True, capture_output=True)
    taken = time.monotonic() - begun
    subprocess.run([*orch, "wait", json.loads(done.stdout)["run_id"]], check=True, capture_output=True)
    return taken


def main() -> None:
    needed("rsync")
    if not on_the_testbed(len(HOSTS)):
        return
    count, folder = how_many(8), scratch()
    files = [wheels.wheel(folder / "wheels", f"small{number}", size=SIZE) for number in range(COUNT)]
    (folder / "hashed.txt").write_text("".join(wheels.requirements(*files).partition("\n")[2].partition("\n")[2:]))
    run, load = a_run(folder, wheels.requirements(*files)), Load()

    def ours() -> float:
        on_hosts("find ~/.orch/cache/wheels -type f -size -10M -delete; rm -rf ~/.orch/cache/env")
        return seconds(install, run)

    def theirs() -> float:
        on_hosts("rm -rf bench/wheels bench/env ~/.cache/uv; mkdir -p bench")
        return seconds(by_hand, folder)

    on_hosts("mkdir -p ~/.orch/cache/wheels")
    install(run), theirs()  # both read everything once; uv is there from here on
    pairs = interleave(ours, theirs, count)
    what = f"environment of {COUNT} wheels of {SIZE // 1000} KB on {len(HOSTS)} machines, hashed, installed once"
    print_pairs(
        what, "`rsync -a`, then `uv pip sync` by hand, on all at once", Target(1.2), pairs, pairs.medians("s"), load
    )

    load = Load()
    hosts = {"kind": "ssh", "hosts": list(HOSTS), "nproc_per_node": 1, "python": sys.executable}
    (folder / "lab.yaml").write_text(json.dumps(hosts))
    plain = wheels.job(folder / "plain", "requirements.txt", "", "print(1)\n")
    plain.write_text(json.dumps({"script": "main.py"}))
    locked = wheels.job(folder / "locked", "requirements.txt", wheels.requirements(*files), "print(1)\n")
    for job in (locked, plain):
        submitted(folder, job)
    pairs = interleave(lambda: submitted(folder, locked), lambda: submitted(folder, plain), count)
    more = sorted(one - other for one, other in zip(pairs.ours, pairs.theirs, strict=True) if one and other)
    middle = more[len(more) // 2]
    shown = f"{middle:.2f} s ({more[0]:.2f}-{more[-1]:.2f})"
    verdict = "met" if middle <= ONCE_MORE else "**falls short**"
    what = f"a second run with the same lock on {len(HOSTS)} machines, until its submit returns"
    target, medians = f"≤ {ONCE_MORE} s more", pairs.medians("s")
    print_row(what, "the same job without a lock", target, shown, str(len(more)), medians, verdict, str(load))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()

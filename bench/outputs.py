"""A run's outputs brought home over SSH and verified, against `rsync -a` of the same files; on the testbed.

Ours is what the supervisor does at a run's end: its session with the host stands, all files are listed, hashed on both
sides, synced to disk and recorded. rsync compares sizes and times alone, and syncs nothing.

The copies of many small files are removed after the last pair: ext4 does not use an inode again for some minutes after
its removal, and looks at all such inodes whenever it makes a file, which took either side several times as long.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path

from lab import on_the_testbed, scratch
from pairs import Load, Target, how_many, interleave, print_pairs

from orchestrator.backends.mirror.outputs import Outputs
from orchestrator.runs.store import RunDir
from orchestrator.transport.address import Address
from orchestrator.transport.pool import ConnectionPool
from orchestrator.transport.rpc import Session

HOST, WORKDIR = "n1", "/home/alice/bench"
MANY = 100  # files
MAKE = """
import os, sys
folder, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for number in range(count):
    below = f"{folder}/{number % 100}"
    os.makedirs(below, exist_ok=True)
    with open(f"{below}/{number}.bin", "wb") as file:
        for _ in range(max(1, size // 1000000)):
            file.write(os.urandom(min(size, 1000000)))
"""


def new_run(name: str) -> RunDir:
    """A run's folder here, as the supervisor has it of one whose node is on the host."""
    run = RunDir(scratch() / "runs" / name)
    run.path.mkdir(parents=True)
    run.write("run.json", {"nnodes": 1, "kind": "ssh", "profile": {"workdir": WORKDIR}})
    code = f"{WORKDIR}/runs/{name}/code"
    run.write("plan.json", {"tasks": [{"code_dir": code}], "job": {"outputs": {"max_size": 1 << 40}}})
    return run


def put_aside(folder: Path) -> None:
    """Remove the copy, or keep it until the end if it has many files."""
    if sum(len(names) for _, _, names in os.walk(folder)) > MANY:
        folder.rename(aside() / str(time.monotonic_ns()))
    else:
        shutil.rmtree(folder)


def aside() -> Path:
    """The folder of the copies that are kept until the end."""
    folder = scratch() / "aside"
    folder.mkdir(exist_ok=True)
    return folder


def bring(session: Session, name: str) -> float:
    """What the supervisor does; RuntimeError where something did not come."""
    run = new_run(name)
    begun = time.monotonic()
    left = Outputs(run, 0).bring(session, final=True)
    seconds = time.monotonic() - begun
    if left.is_something:
        raise RuntimeError(left.reason)
    put_aside(run.path)
    return seconds


def rsync(folder: str, target: Path) -> float:
    """The peer."""
    begun = time.monotonic()
    subprocess.run(["rsync", "-a", f"{HOST}:{folder}/", str(target)], check=True)
    seconds = time.monotonic() - begun
    put_aside(target)
    return seconds


def compare(session: Session, name: str, count: int, size: int, target: Target, pairs: int) -> None:
    """Print the row of so many files of this size, and remove them there."""
    load, top = Load(), f"{WORKDIR}/runs/{name}"
    code = f"{top}/code"
    subprocess.run(["ssh", HOST, "python3", "-", code, str(count), str(size)], input=MAKE.encode(), check=True)

    def orch() -> float:
        return bring(session, name)

    def peer() -> float:
        return rsync(code, scratch() / "rsync")

    orch(), peer()  # both read them once
    found = interleave(orch, peer, pairs)
    what = f"a run's outputs brought home over SSH: {count:,} files of {size:,} bytes, sha256, synced"
    print_pairs(what, "`rsync -a` alone", target, found, found.medians("s"), load)
    subprocess.run(["ssh", HOST, "rm", "-r", top], check=True)
    shutil.rmtree(aside())


def main() -> None:
    if not on_the_testbed(1):
        return
    with contextlib.closing(ConnectionPool()) as pool:
        session = pool.session(Address(HOST), WORKDIR)
        compare(session, "large", 4, 500_000_000, Target(1.1), how_many(5))
        compare(session, "small", 10_000, 1_000, Target(1.2), how_many(5))


if __name__ == "__main__":
    main()

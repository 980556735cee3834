"""A checkpoint brought back over SSH and verified, against `scp` alone of the same files; on the testbed.

Ours is what the supervisor does with a checkpoint that is new: its session with the host stands, the connection for the
bytes is made anew, everything is hashed, synced to disk, and named only then. scp does none of that.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lab import on_the_testbed, scratch
from pairs import Load, Target, how_many, interleave, print_pairs, print_row

from orchestrator.backends.mirror.checkpoints import bring_checkpoint
from orchestrator.protocol.checkpoints.checksum import Algorithm
from orchestrator.transport.address import Address
from orchestrator.transport.pool import ConnectionPool
from orchestrator.transport.rpc import Session

HOST, FOLDER = "n1", "/home/alice/bench"
MAKE = """
import hashlib, json, os, sys
from blake3 import blake3
step, size, algorithm = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
folder = f"/home/alice/bench/step_{step:08}"
os.makedirs(folder)
digest = blake3() if algorithm == "blake3" else hashlib.sha256()
with open(f"{folder}/state.pt", "wb") as file:
    for _ in range(size // 1000000):
        block = os.urandom(1000000)
        digest.update(block)
        file.write(block)
    file.flush()
    os.fsync(file.fileno())
files = {"state.pt": {"bytes": size, algorithm: digest.hexdigest()}}
manifest = json.dumps({"format": 2 if algorithm == "blake3" else 1, "step": step, "files": files}).encode()
open(f"{folder}/manifest.json", "wb").write(manifest)
open(f"{folder}/COMMIT", "w").write(hashlib.sha256(manifest).hexdigest() + "\\n")
"""


def timed(work: Callable[[], object], target: Path) -> float:
    """How long the work takes that fills the folder, which is removed after it."""
    begun = time.monotonic()
    work()
    seconds = time.monotonic() - begun
    shutil.rmtree(target)
    return seconds


def bring(session: Session, target: Path) -> None:
    """What the supervisor does; RuntimeError where it does not verify."""
    if not bring_checkpoint(session, f"{FOLDER}/{target.name}", target):
        raise RuntimeError(f"{target.name} did not come")


def scp(target: Path) -> None:
    """The peer."""
    subprocess.run(["scp", "-q", "-B", "-r", f"{HOST}:{FOLDER}/{target.name}", str(target)], check=True)


def compare(session: Session, step: int, size: int, name: str, algorithm: Algorithm, count: int) -> Path:
    """Print the row of one size and checksum; where the checkpoint would be brought to."""
    load = Load()
    make = ["ssh", HOST, sys.executable, "-", str(step), str(size), algorithm]
    subprocess.run(make, input=MAKE.encode(), check=True)
    ours, theirs = scratch() / f"step_{step:08}", scratch() / "scp" / f"step_{step:08}"
    theirs.parent.mkdir(exist_ok=True)

    def orch() -> float:
        return timed(lambda: bring(session, ours), ours)

    def peer() -> float:
        return timed(lambda: scp(theirs), theirs)

    orch(), peer()  # both read it once
    pairs = interleave(orch, peer, count)
    what = f"{name} checkpoint brought back over SSH: {algorithm}, synced, committed last"
    print_pairs(what, "`scp -r` alone", Target(1), pairs, pairs.medians("s"), load)
    return ours


def main() -> None:
    if not on_the_testbed(1):
        return
    count = how_many(8)
    with contextlib.closing(ConnectionPool()) as pool:
        session = pool.session(Address(HOST), "~/.orch")
        compare(session, 1, 512_000_000, "512 MB", Algorithm.BLAKE3, count)
        compare(session, 2, 1_000_000_000, "1 GB", Algorithm.SHA256, count)
        target = compare(session, 3, 1_000_000_000, "1 GB", Algorithm.BLAKE3, count)
        bring(session, target)
        load, begun = Load(), time.monotonic()
        bring(session, target)
        seconds = time.monotonic() - begun
        verdict = "met" if seconds <= 1 else "**falls short**"
        what = "the same 1 GB checkpoint, unchanged"
        print_row(what, "-", "≤ 1 s", "-", "1", f"{seconds:.3f} s", verdict, str(load))


if __name__ == "__main__":
    main()

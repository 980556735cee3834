"""The testbed as the measurements of SSH and Slurm use it: up for one script's length, which then runs on it as alice.

It needs root on Debian 12: docs/testbed.md says how to get that. Elsewhere a script says so and measures nothing.
"""

from __future__ import annotations

import compileall
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pairs import ROOT, say

sys.path.insert(0, str(ROOT))

from tests.testbed import images
from tests.testbed.cluster import down, up
from tests.testbed.hosts import enter
from tests.testbed.layout import Cluster, ClusterError, state_folder
from tests.testbed.machine import ENVIRONMENT, missing_packages, obstacle

INSIDE = "--on-the-testbed"


@contextlib.contextmanager
def testbed(nodes: int, *, slurm: bool, docker: bool) -> Iterator[Cluster]:
    """A testbed, with Slurm and Docker daemons (that have the tests' image) where asked, down again with the block.

    Ends the script where none can be.
    """
    if reason := obstacle() or (missing_packages() and "python -m tests.testbed install comes first"):
        say(f"not measured: {reason}")
        sys.exit(0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        cluster = up(Cluster(state_folder(), nodes, slurm=slurm, docker=docker))
    except ClusterError as error:
        say(f"not measured: {error}")
        sys.exit(1)
    try:
        if docker:
            images.load(cluster, images.base())
        yield cluster
    finally:
        down()


def on_the_testbed(nodes: int, *, slurm: bool = False, docker: bool = False) -> bool:
    """Is this alice's process on the testbed's controller? If not, the script is run again as one; False after it.

    On the controller the hosts are n1, n2, ...; clocks and cores are the machine's.
    """
    if INSIDE in sys.argv:
        sys.argv.remove(INSIDE)
        return True
    with testbed(nodes, slurm=slurm, docker=docker) as cluster:
        compileall.compile_dir(ROOT / "orchestrator", quiet=2)  # as an installation does; alice may not write there
        argv = [*enter(cluster, "ctl", "alice", {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]})]
        script = [str(Path(sys.argv[0]).resolve()), *sys.argv[1:]]
        done = subprocess.run([*argv, sys.executable, *script, INSIDE], env=ENVIRONMENT, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    return False


def needed(program: str) -> str:
    """The path of a peer's program; ends the script where it is missing."""
    if (found := shutil.which(program)) is None:
        say(f"not measured: there is no {program} here: apt-get install {program}")
        sys.exit(0)
    return found


def scratch() -> Path:
    """A folder of alice's own, on the disk of the machine."""
    path = Path.home() / "bench"
    path.mkdir(exist_ok=True)
    return path

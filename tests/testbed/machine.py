"""The machine under the testbed: running its programs, waiting for its daemons, and what it must have."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.patience import PATIENCE
from tests.testbed.layout import ClusterError, is_unwanted

PACKAGES = {
    "ip": "iproute2",
    "iptables": "iptables",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "rsync": "rsync",
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "sbatch": "slurm-client",
    "mariadbd": "mariadb-server",
    "dockerd": "docker.io",
    "debootstrap": "debootstrap",
    "podman": "podman",
    "catatonit": "catatonit",
    "newuidmap": "uidmap",
    "gcc": "gcc",
    "gencat": "libc6-dev",  # the header files of C; this program comes with them
    "tmux": "tmux",
    "tcsh": "tcsh",
    "chromium": "chromium",
    "oathtool": "oathtool",
    "google-authenticator": "libpam-google-authenticator",
}
# Grid Engine's, which only the tests of `make test-all` need.
MORE_PACKAGES = {"sge_qmaster": "gridengine-master", "sge_execd": "gridengine-exec", "qsub": "gridengine-client"}
# What daemons and their jobs get: nothing of the shell that happened to start the testbed.
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


def missing_packages(*, more: bool = False) -> list[str]:
    """The Debian packages that the testbed needs and the machine lacks; with `more`, Grid Engine's too."""
    needed = {**PACKAGES, **(MORE_PACKAGES if more else {})}
    return [package for program, package in needed.items() if not shutil.which(program, path=ENVIRONMENT["PATH"])]


def obstacle() -> str | None:
    """Why there can be no testbed here whatever is installed, in one sentence; None where there can."""
    if is_unwanted():
        return "TESTBED=0 says that no testbed is wanted"
    if os.geteuid() != 0:
        return "the testbed needs root, for namespaces: start it as root, also in a privileged container"
    if not Path("/etc/debian_version").exists() or not shutil.which("apt-get"):
        return "the testbed needs Debian's packages: start it in a privileged Debian container"
    return None


def require(*, more: bool = False) -> None:
    """ClusterError with the remedy where a testbed can't be brought up."""
    if reason := obstacle():
        raise ClusterError(reason)
    if missing := missing_packages(more=more):
        raise ClusterError(f"{', '.join(missing)} is missing: `python -m tests.testbed install{' --all' * more}`")


def install(*, more: bool = False) -> None:
    """Install what is missing; prints nothing."""
    if reason := obstacle():
        raise ClusterError(reason)
    if not (missing := missing_packages(more=more)):
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for argv in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing],
    ):
        call(argv, env=environment)


def call(argv: Sequence[str | Path], env: dict[str, str] | None = None, text: str | None = None) -> str:
    """What the program printed; ClusterError with its own words where it failed."""
    done = subprocess.run(
        argv, input=text or "", capture_output=True, text=True, check=False, env=ENVIRONMENT if env is None else env
    )
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise ClusterError(f"`{' '.join(map(str, argv))}` ended with {done.returncode}: {'; '.join(words)}")
    return done.stdout


def succeeds(argv: Sequence[str | Path]) -> bool:
    """Does the program end with 0?"""
    return subprocess.run(argv, capture_output=True, check=False, env=ENVIRONMENT).returncode == 0


def wait_until(ready: Callable[[], bool], what: str, log: Path | None = None, seconds: float = PATIENCE) -> None:
    """Return once it is ready. Raises ClusterError with the log's last lines if it isn't in time.

    A poll, because the daemons tell that they are ready in no other way than by answering. It pauses for twice as long
    as the last look took, so that a look by a command leaves the processor to what is waited for.
    """
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if ready():
            return
        if time.monotonic() > end:
            lines = log.read_text(errors="replace").splitlines()[-5:] if log and log.exists() else []
            raise ClusterError(f"{what} was not ready after {seconds:.0f} s" + "".join(f"\n  {line}" for line in lines))
        time.sleep(max(0.05, 2 * (time.monotonic() - began)))

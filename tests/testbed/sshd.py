"""OpenSSH's server on every host: its configuration, its host key, and starting it anew with other ones."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.testbed.hosts import enter, init_of
from tests.testbed.layout import Cluster, ClusterError
from tests.testbed.machine import call, wait_until
from tests.testbed.people import make_key

KEY = "ssh_host_ed25519_key"
CONFIG = """\
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
MaxStartups 200
PidFile /run/sshd.pid
Subsystem sftp internal-sftp
HostKey /etc/ssh/ssh_host_ed25519_key
"""


def configure(cluster: Cluster, host: str, options: Sequence[str] = ()) -> None:
    """Write the host's /etc/ssh; each option is one line of sshd_config and goes before the usual ones.

    The first value that sshd reads of an option counts.
    """
    folder = cluster.folder(host) / "ssh"
    if not folder.exists():
        folder.mkdir()
        give_key(cluster, host)
    (folder / "sshd_config").write_text("".join(f"{option}\n" for option in options) + CONFIG)


def give_key(cluster: Cluster, host: str) -> None:
    """Give the host the key that everybody's known_hosts has of it."""
    key = cluster.folder(host) / "ssh" / KEY
    for suffix in ("", ".pub"):
        shutil.copy(f"{cluster.root / 'keys' / host}{suffix}", f"{key}{suffix}")


def change_key(cluster: Cluster, host: str) -> None:
    """Give the host another key than the one that everybody knows, as after a reinstallation."""
    key = cluster.folder(host) / "ssh" / KEY
    key.unlink()
    key.with_suffix(".pub").unlink()
    make_key(key, host)


def start(cluster: Cluster, host: str) -> None:
    """Start sshd; returns when it listens."""
    pid_file = _pid_file(cluster, host)
    call([*enter(cluster, host), "/usr/sbin/sshd"])
    wait_until(pid_file.exists, f"sshd on {host}")  # which it writes once it listens


def restart(cluster: Cluster, host: str) -> None:
    """Start sshd anew, with the configuration and key that are there now; open connections stay."""
    pid_file = _pid_file(cluster, host)
    number = pid_file.read_text().strip()
    call([*enter(cluster, host), "kill", number])  # the number is the host's own; the listener removes its file
    wait_until(lambda: not pid_file.exists(), f"the end of sshd on {host}")
    start(cluster, host)


def _pid_file(cluster: Cluster, host: str) -> Path:
    """sshd's pid file as the machine sees it."""
    first = init_of(cluster, cluster.known(host))
    if first is None:
        raise ClusterError(f"{host} is off: `python -m tests.testbed boot {host}`")
    return Path(f"/proc/{first.pid}/root/run/sshd.pid")

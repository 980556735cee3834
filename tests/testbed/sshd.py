"""OpenSSH's server on every host: its configuration, its host key, and starting it anew with other ones."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.testbed.hosts import enter, init_of
from tests.testbed.layout import PEOPLE, Cluster, ClusterError
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

LOG = "/srv/log/sshd"
# Ways to log in that a person has to type something for; `ask_for_more` prepares a host for them.
SECOND_FACTOR = (
    "UsePAM yes",
    "KbdInteractiveAuthentication yes",
    "AuthenticationMethods publickey,keyboard-interactive",
    "LogLevel VERBOSE",
)
PASSWORD = ("PasswordAuthentication yes", "AuthenticationMethods password", "LogLevel VERBOSE")
CODES = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"  # of everybody's one-time codes, in base 32
WORD = "correct horse"  # everybody's password
PAM = """\
auth required pam_google_authenticator.so user=root secret=/srv/totp
account required pam_permit.so
session required pam_permit.so
"""


def ask_for_more(cluster: Cluster, host: str) -> None:
    """Give everybody a password and one-time codes on the host, as Debian's libpam-google-authenticator checks them.

    The log of its sshd begins anew.
    """
    cluster.folder(host).joinpath(LOG[1:]).write_text("")
    totp = cluster.folder(host) / "srv" / "totp"
    totp.write_text(f'{CODES}\n" WINDOW_SIZE 17\n" TOTP_AUTH\n')
    totp.chmod(0o400)
    digest = call(["openssl", "passwd", "-6", WORD]).strip()
    for person in PEOPLE:
        call([*enter(cluster, host), "sed", "-i", f"s|^{person.name}:[^:]*:|{person.name}:{digest}:|", "/etc/passwd"])
    call([*enter(cluster, host), "tee", "/etc/pam.d/sshd"], text=PAM)


def answering() -> str:
    """A program for SSH_ASKPASS that answers what the hosts ask for, as a person would."""
    return f"""#!/bin/sh
case "$1" in
  *assword*) echo '{WORD}' ;;
  *) exec oathtool --totp --base32 {CODES} ;;
esac
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
    call([*enter(cluster, host), "/usr/sbin/sshd", "-E", LOG])
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

"""What makes a real site differ from the testbed: PATH, interpreters, modules, login shells, start files, logins.

A site changes only a host's /srv/site, alice's home, her login shell, the host's sshd_config and, for a second factor,
its PAM. The laptop is ctl, of which a site changes only alice's home.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from orchestrator.transport.pool import OPEN
from tests.testbed import sshd
from tests.testbed.hosts import enter
from tests.testbed.layout import Cluster
from tests.testbed.machine import call

LAPTOP: Final = "ctl"
TOP: Final = "/srv/site"
PATH: Final = f"PATH={TOP}/bin:/usr/local/bin:/usr/bin:/bin"
_NEW = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n'
# Imitates Python 3.6, which Debian 12 does not have. It runs its programs with the tests' own interpreter, in which
# sys.version_info is that of Python 3.6.8, so it shows what orch does with the version, and no lack of a feature.
_OLD = f"""\
#!{sys.executable} -ISE
import sys
if "-c" not in sys.argv:
    sys.exit("Python 3.6.8 (an imitation) runs only -c")
at = sys.argv.index("-c")
code, sys.argv = sys.argv[at + 1], ["-c", *sys.argv[at + 2 :]]
sys.version_info = (3, 6, 8, "final", 0)
exec(code)
"""
_OLD_PYTHON3 = f"put {TOP}/bin/python3 {shlex.quote(_OLD)}\n"
_MODULE = f'module() {{ [ -d {TOP}/modules/"$2" ] || return 1; PATH={TOP}/modules/"$2"/bin:$PATH; }}\n'
_CONDA = f'conda() {{ CONDA_PREFIX={TOP}/conda/envs/"$2"; export CONDA_PREFIX; PATH=$CONDA_PREFIX/bin:$PATH; }}\n'
_TITLE = r'printf "\033]0;n1\007 welcome without an end of line"'
_SOCKET: Final = "/home/alice/agent"
_AGENT_PID: Final = f"{TOP}/agent.pid"
# Her key is in an agent, and on no disk of the laptop; its public key is ~/id.pub.
_IN_AGENT: Final = f"""\
eval "$(as_alice ssh-agent -s -a {_SOCKET})" >/dev/null
put {_AGENT_PID} "$SSH_AGENT_PID"
ssh-add -q .ssh/id_ed25519
rm .ssh/id_ed25519
mv .ssh/id_ed25519.pub id.pub
"""
# The authority's key is root's, which all hosts have.
_SIGNED: Final = """\
as_alice ssh-keygen -q -t ed25519 -N '' -f other
ssh-keygen -q -s /root/.ssh/id_ed25519 -I alice -n alice other.pub
mv other-cert.pub signed.pub
"""


@dataclass(frozen=True)
class Site:
    """One difference. Scripts are run by root, and know the functions `put FILE TEXT` and `as_alice COMMAND`: `script`
    on each host, and `laptop` in alice's home there.
    """

    what: str
    script: str = "true"
    sshd: tuple[str, ...] = ()
    profile: Mapping[str, Any] = field(default_factory=dict)  # the fields of a profile that the site needs
    shell: str = "/bin/bash"
    laptop: str = "true"
    ssh: tuple[str, ...] = ()  # her lines of ~/.ssh/config about the hosts
    variables: Mapping[str, str] = field(default_factory=dict)  # her environment on the laptop
    why_program: str = ""  # why orch uses her ssh program; "" if it does not
    asks: bool = False  # True if a person has to open the connection to each host

    @property
    def config(self) -> str:
        """Her ~/.ssh/config on the laptop."""
        return "\n  ".join(["Host n*", *self.ssh]) + "\n"


SITES: Final[Mapping[str, Site]] = {
    "old-python": Site(
        "python3 is 3.6 (an imitation); the profile names a newer interpreter",
        _OLD_PYTHON3 + f"put {TOP}/new/bin/python {shlex.quote(_NEW)}",
        (f"SetEnv {PATH}",),
        {"python": f"{TOP}/new/bin/python"},
    ),
    "no-python": Site(
        "no python3 is on the PATH of a command over SSH",
        f"mkdir -p {TOP}/bin && cp -as /usr/bin/. {TOP}/bin && rm {TOP}/bin/python*\n"
        f"put {TOP}/new/bin/python {shlex.quote(_NEW)}",
        (f"SetEnv PATH={TOP}/bin",),
        {"python": f"{TOP}/new/bin/python"},
    ),
    "modules": Site(
        "python3 is 3.6 (an imitation); `module load` makes a newer interpreter available",
        _OLD_PYTHON3 + f"put {TOP}/modules/torch/bin/pythonx {shlex.quote(_NEW)}\n"
        f"put /home/alice/.bash_profile {shlex.quote(_MODULE)}",
        (f"SetEnv {PATH}",),
        {"python": "pythonx", "setup": ["module load torch"]},
    ),
    "conda": Site(
        "python3 is 3.6 (an imitation); `conda activate` makes a newer `python` available",
        _OLD_PYTHON3 + f"put {TOP}/bin/python {shlex.quote(_OLD)}\n"
        f"put {TOP}/conda/etc/profile.d/conda.sh {shlex.quote(_CONDA)}\n"
        f"put {TOP}/conda/envs/train/bin/python {shlex.quote(_NEW)}",
        (f"SetEnv {PATH}",),
        {"python": "python", "setup": [f". {TOP}/conda/etc/profile.d/conda.sh", "conda activate train"]},
    ),
    "tcsh": Site(
        "the login shell is tcsh, and .cshrc prints",
        _OLD_PYTHON3 + f"put {TOP}/login/python3 {shlex.quote(_NEW)}\n"
        f"put /home/alice/.login 'setenv PATH {TOP}/login:$PATH'\n"
        "put /home/alice/.cshrc 'echo hello from .cshrc'",
        (f"SetEnv {PATH}",),
        {"python": sys.executable},
        "/bin/tcsh",
    ),
    "chatty": Site(
        ".bashrc prints 1,000 lines, and a window title without an end of line",
        f"put /home/alice/.bashrc {shlex.quote(f'seq 1 1000; {_TITLE}')}",
        profile={"python": sys.executable},
    ),
    "slow": Site(
        ".bashrc takes 16 s", "put /home/alice/.bashrc 'sleep 16'", profile={"python": sys.executable}
    ),
    "second-factor": Site(
        "the login asks for a one-time code",
        sshd=sshd.SECOND_FACTOR,
        ssh=("ControlMaster auto", "ControlPath ~/.ssh/cm-%C", "ControlPersist yes"),
        why_program=OPEN,
        asks=True,
    ),
    "proxy-command": Site(
        "~/.ssh/config has ProxyCommand", ssh=("ProxyCommand ssh -W %h:%p ctl",), why_program="ProxyCommand"
    ),
    "key-of-agent": Site(
        "the key is in the agent, and ~/.ssh/config has IdentitiesOnly and the path that the key had",
        laptop=_IN_AGENT,
        ssh=("IdentitiesOnly yes", "IdentityFile ~/id"),
        variables={"SSH_AUTH_SOCK": _SOCKET},
        why_program="IdentitiesOnly",
    ),
    "public-key": Site(
        "the key is in the agent, and IdentityFile names the public key",
        laptop=_IN_AGENT,
        ssh=("IdentityFile ~/id.pub",),
        variables={"SSH_AUTH_SOCK": _SOCKET},
        why_program="IdentityFile /home/alice/id.pub is a public key",
    ),
    "own-agent": Site(
        "IdentityAgent names the socket of an agent",
        laptop=_IN_AGENT,
        ssh=(f"IdentityAgent {_SOCKET}",),
        why_program="IdentityAgent",
    ),
    "certificate": Site(
        "the hosts accept only certificates of users, and ~/.ssh/config has CertificateFile",
        sshd=("TrustedUserCAKeys /root/.ssh/id_ed25519.pub", "AuthorizedKeysFile none"),
        laptop=_SIGNED,
        ssh=("IdentityFile ~/other", "CertificateFile ~/signed.pub"),
        why_program="CertificateFile",
    ),
}  # fmt: skip
_KNOWN: Final = """\
put() { mkdir -p "$(dirname "$1")" && printf "%s\\n" "$2" >"$1" && chmod 755 "$1"; }
as_alice() { setpriv --reuid=alice --regid=alice --init-groups "$@"; }
"""


def apply(cluster: Cluster, host: str, name: str) -> None:
    """Make the host one of this site, or the laptop the laptop of somebody who uses the site."""
    site, inside = SITES[name], enter(cluster, host)
    if host == LAPTOP:
        config = f"put .ssh/config {shlex.quote(site.config)}\n" if site.ssh else ""
        call([*inside, "sh", "-euc", f"{_KNOWN}cd /home/alice\n{config}{site.laptop}"])
        return
    call([*inside, "sh", "-euc", _KNOWN + site.script])
    call([*inside, "usermod", "--shell", site.shell, "alice"])
    if site.asks:
        sshd.ask_for_more(cluster, host)
    if site.sshd:
        sshd.configure(cluster, host, site.sshd)
        sshd.restart(cluster, host)


def remove(cluster: Cluster, host: str) -> None:
    """Make the host an ordinary one again, except for alice's home."""
    call([*enter(cluster, host), "sh", "-euc", f'[ ! -e {_AGENT_PID} ] || kill "$(cat {_AGENT_PID})"; rm -rf {TOP}'])
    if host == LAPTOP:
        return
    call([*enter(cluster, host), "usermod", "--shell", "/bin/bash", "alice"])
    sshd.configure(cluster, host)
    sshd.restart(cluster, host)

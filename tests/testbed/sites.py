"""What makes a real site differ from the testbed: PATH, interpreters, modules, login shells, start files, logins.

A site changes only a host's /srv/site, alice's home, her login shell and the host's sshd_config.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.testbed import sshd
from tests.testbed.hosts import enter
from tests.testbed.layout import Cluster
from tests.testbed.machine import call

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


@dataclass(frozen=True)
class Site:
    """One difference. The script is run by root on the host, and knows the function `put FILE TEXT`."""

    what: str
    script: str = "true"
    sshd: tuple[str, ...] = ()
    profile: Mapping[str, Any] = field(default_factory=dict)  # the fields of a profile that the site needs
    shell: str = "/bin/bash"


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
}  # fmt: skip
_PUT = 'put() { mkdir -p "$(dirname "$1")" && printf "%s\\n" "$2" >"$1" && chmod 755 "$1"; }\n'


def apply(cluster: Cluster, host: str, name: str) -> None:
    """Make the host one of this site."""
    site, inside = SITES[name], enter(cluster, host)
    call([*inside, "sh", "-euc", _PUT + site.script])
    call([*inside, "usermod", "--shell", site.shell, "alice"])
    if site.sshd:
        sshd.configure(cluster, host, site.sshd)
        sshd.restart(cluster, host)


def remove(cluster: Cluster, host: str) -> None:
    """Make the host an ordinary one again, except for alice's home."""
    call([*enter(cluster, host), "rm", "-rf", TOP])
    call([*enter(cluster, host), "usermod", "--shell", "/bin/bash", "alice"])
    sshd.configure(cluster, host)
    sshd.restart(cluster, host)

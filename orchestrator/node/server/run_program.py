"""Runs programs on this machine for the submitting machine, such as Slurm's commands on a login node."""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import subprocess

from orchestrator.node.server.request import Answer, RefusedError, Request
from orchestrator.node.system.private import users_umask

PROFILE_SECONDS = 10.0
OF_THE_SHELL = ("_", "SHLVL", "PWD", "OLDPWD")  # variables that each shell sets for itself


def run_program(request: Request, payload: bytes) -> Answer:
    """Run a program with the payload as its stdin. If it does not end within `patience` seconds, its exit code is null.

    Variables whose names begin with an entry of `hide` are removed from the program's environment, except those that
    `keep` names. If an entry of `hide` ends in `=`, it hides only the variable with exactly that name.
    """
    argv = [str(word) for word in request["argv"]]
    hide, keep = tuple(request["hide"]), request.get("keep", ())
    here = _environment(argv[0]).items()
    kept = {name: value for name, value in here if name in keep or not f"{name}=".startswith(hide)}
    try:
        done = subprocess.run(
            argv, input=payload, capture_output=True, timeout=float(request["patience"]), check=False,
            env={**kept, **request["env"]}, umask=users_umask(),
        )  # fmt: skip
    except FileNotFoundError as error:
        raise RefusedError(f"there is no {argv[0]} on this host") from error
    except subprocess.TimeoutExpired:
        return {"code": None, "err": ""}, b""
    return {"code": done.returncode, "err": done.stderr.decode("utf-8", "replace")}, done.stdout


def missing_programs(request: Request, _: bytes) -> Answer:
    """Return which of the named programs this machine lacks."""
    names = [name for name in request["names"] if shutil.which(name, path=_environment(name).get("PATH")) is None]
    return {"missing": names}, b""


def _environment(name: str) -> dict[str, str]:
    """Return the environment for the program. If the program is not on PATH, add the PATH and the missing variables of
    the user's login shell, because SSH runs no login shell.
    """
    if shutil.which(name) is not None:
        return dict(os.environ)
    login = login_environment()
    path = os.pathsep.join(filter(None, [os.environ.get("PATH", os.defpath), login.get("PATH")]))
    return {**login, **os.environ, "PATH": path}


@functools.cache
def login_environment() -> dict[str, str]:
    """Return the environment of the user's own login shell. The shell's start files may print other text first, which
    is ignored. Return an empty environment if the shell does not answer in time.
    """
    shell, mark = os.environ.get("SHELL") or "/bin/sh", secrets.token_hex(8)  # sshd sets SHELL
    try:
        # Each shell is a login shell if its name begins with `-`. csh takes `-l` only without `-c`.
        done = subprocess.run(
            [f"-{os.path.basename(shell)}", "-c", f"echo {mark}; env -0"], executable=shell,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=PROFILE_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return {}
    _, _, printed = done.stdout.decode("utf-8", "replace").rpartition(f"{mark}\n")
    pairs = (each.partition("=") for each in printed.split("\0"))
    return {name: value for name, equals, value in pairs if equals and name not in OF_THE_SHELL}

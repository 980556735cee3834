"""Installs an environment from local wheels with uv, without a network. The environment is built in a temporary
folder, which is renamed once the installation is complete.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from orchestrator.node.environments.folder import interpreter, seal, why_unusable
from orchestrator.node.system.hashing import digest_of
from orchestrator.protocol.files import locked, temporary_name
from orchestrator.protocol.reading import open_own, opened

LAST_LINES = 12
# Prefixes of variables that uv must not get, because they configure another environment.
STRANGE = ("UV_", "PIP_", "PYTHON", "VIRTUAL_ENV", "CONDA_")
PTH = "orch-system-packages.pth"


class InstallError(Exception):
    """The environment can't be installed. The message has the last lines of uv's output."""


@dataclass(frozen=True)
class Order:
    """A request to install an environment: its requirements with one hash each, and the wheels that have these
    hashes.
    """

    key: str
    requirements: str
    wheels: dict[str, str]  # file name -> sha256
    uv: str  # sha256 of the uv program
    base: str  # the interpreter
    paths: tuple[str, ...] = ()  # folders whose packages are visible in the environment too

    @staticmethod
    def from_json(data: dict[str, Any]) -> Order:
        """Return the order that a JSON object describes. Raises ValueError or TypeError if the object is not valid."""
        if len(data["key"]) != 64 or not set(data["key"]) <= set("0123456789abcdef"):
            raise ValueError(f"{data['key']!r} is not a key of an environment")
        if any(os.path.basename(name) != name or name.startswith(".") for name in data["wheels"]):
            raise ValueError("the name of a wheel has a folder in it, or begins with a dot")
        return Order(**{**data, "paths": tuple(data["paths"])})


def environments_folder(cache: str) -> str:
    """Return the folder of a cache that contains its environments."""
    return f"{cache}/env"


def wheels_folder(cache: str) -> str:
    """Return the folder of a cache that contains its wheels. Each wheel is named by its sha256."""
    return f"{cache}/wheels"


def place_of(cache: str, key: str) -> str:
    """Return the folder of the environment with this key."""
    return f"{environments_folder(cache)}/{key}"


def install(cache: str, order: Order) -> bool:
    """Install the environment if it is absent or was changed. Return whether it was installed by this call.

    Other processes that need the environment wait until this returns. Raises InstallError if the installation fails.
    """
    os.makedirs(environments_folder(cache), mode=0o700, exist_ok=True)
    folder = place_of(cache, order.key)
    with locked(f"{folder}.lock"):
        if why_unusable(folder) is None:
            return False
        partial = temporary_name(folder)
        os.mkdir(partial, 0o700)
        try:
            _build(cache, partial, order)
            # A changed environment may still be in use. Its open files stay readable after they are removed.
            if os.path.lexists(folder):
                os.rename(folder, f"{partial}/altered")
            os.rename(f"{partial}/env", folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return True


def _build(cache: str, partial: str, order: Order) -> None:
    links, target = f"{partial}/links", f"{partial}/env"
    os.mkdir(links)
    for name, sha256 in order.wheels.items():
        os.symlink(os.path.abspath(f"{wheels_folder(cache)}/{sha256}"), f"{links}/{name}")
    with open(f"{partial}/requirements.txt", "w", encoding="utf-8") as file:
        file.write(order.requirements)
    uv = _verified_copy(f"{wheels_folder(cache)}/{order.uv}", order.uv, f"{partial}/uv")
    common = ("--offline", "--no-config", "--no-python-downloads", "--quiet", "--cache-dir", f"{partial}/cache")
    _run([uv, "venv", *common, "--no-project", "--relocatable", "--python", order.base, target])
    if order.wheels:
        _run([
            uv, "pip", "sync", *common, "--no-index", "--find-links", links, "--require-hashes", "--link-mode", "copy",
            "--python", interpreter(target), f"{partial}/requirements.txt",
        ])  # fmt: skip
    if order.paths:
        _show(target, order.paths)
    seal(target, {"key": order.key, "requirements": order.requirements, "base": order.base})


def _verified_copy(source: str, sha256: str, target: str) -> str:
    """Copy a program and return the path of the copy. Raises InstallError if the copy does not have this hash."""
    try:
        new = open_own(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
        with open(new, "wb") as copy, opened(source) as kept:
            found = digest_of(kept, copy)
    except FileNotFoundError as error:
        raise InstallError("uv was removed from the cache meanwhile; submit the job again") from error
    if found != sha256:
        raise InstallError(f"{source} has changed: its contents do not match the sha256 in its name; remove the file")
    return target


def _show(target: str, paths: tuple[str, ...]) -> None:
    """Make the packages in these folders visible in the environment, after the environment's own packages. The .pth
    files in these folders are read too.
    """
    for name in os.listdir(f"{target}/lib"):
        with open(f"{target}/lib/{name}/site-packages/{PTH}", "w", encoding="utf-8") as file:
            file.writelines(f"import site; site.addsitedir({path!r})\n" for path in paths)


def _run(argv: list[str]) -> None:
    """Run uv. If uv fails, raises InstallError with the last lines of its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(STRANGE)}
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
            cwd=os.path.dirname(argv[0]), check=False,
        )  # fmt: skip
    except OSError as error:
        raise InstallError(f"uv can't be started on this host: {error.strerror}") from error
    if done.returncode != 0:
        lines = done.stdout.decode("utf-8", "replace").strip().splitlines()[-LAST_LINES:]
        what = " ".join(each for each in argv[1:3] if not each.startswith("-"))
        raise InstallError("\n".join([f"uv {what} fails on this host:", *lines]))

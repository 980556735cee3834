"""Finds an interpreter of this machine by its version, and collects the facts that decide which wheels can be installed
for it.
"""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.node.system.interpreter import InterpreterError, ask_interpreter, usual_folders

# An interpreter prints its own absolute path, because the command that starts it may be a shim, such as pyenv's.
ASK = """
import json, os, platform, site, sys, sysconfig
def libc():
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        return ""
def musl():
    import subprocess
    try:
        said = subprocess.run(["ldd"], capture_output=True, text=True).stderr.split("\\n")
    except OSError:
        return ""
    return "musl " + said[1].split()[-1] if "musl" in said[0] and len(said) > 1 else ""
found = {
    "base": os.path.abspath(getattr(sys, "_base_executable", sys.executable)),
    "version": platform.python_version(),
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "platform": sysconfig.get_platform(),
    "libc": libc() or musl(),
    "markers": {
        "implementation_name": sys.implementation.name,
        "implementation_version": platform.python_version(),
        "os_name": os.name,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "python_full_version": platform.python_version(),
        "python_version": "%d.%d" % sys.version_info[:2],
        "sys_platform": sys.platform,
    },
    "paths": [],
    "packages": {},
}
if sys.argv[1:] == ["packages"]:
    import re
    found["paths"] = [path for path in site.getsitepackages() if os.path.isdir(path)]
    seen = dict.fromkeys([*found["paths"], *filter(os.path.isdir, sys.path)])  # .pth files may have added more
    for name in (name for path in seen for name in os.listdir(path)):
        one = re.match("(.+?)-([^-]+)(-py[0-9.]+)?[.](dist|egg)-info$", name)
        if one:
            found["packages"].setdefault(one[1], one[2])
print("\\n" + json.dumps(found))
"""


class NoInterpreterError(Exception):
    """No interpreter matches the request. The message lists the interpreters that were found."""


def find(python: str, version: str | None, system_packages: str | None) -> dict[str, Any]:
    """Return the facts about the interpreter for a new environment. Raises NoInterpreterError if no interpreter
    matches.

    If `system_packages` is given, it is the path of the interpreter. Otherwise `python` is used if it has the requested
    version, or else any other interpreter with this version.
    """
    if system_packages is not None:
        found = ask(system_packages, packages=True)
        if not _fits(found["version"], version):
            raise NoInterpreterError(
                f"system_packages: {system_packages} is Python {found['version']}, and the job requests {version}"
            )
        return found
    if version is None:
        return ask(python)
    seen: dict[str, str] = {}
    for path in _candidates(python, version):
        try:
            found = ask(path)
        except NoInterpreterError:
            continue
        if _fits(found["version"], version):
            return found
        seen.setdefault(found["base"], found["version"])
    known = ", ".join(f"{number} ({path})" for path, number in sorted(seen.items(), key=lambda each: each[1]))
    raise NoInterpreterError(f"the host has no Python {version}; found: {known or 'none'}")


def after_setup(python: str, setup: Sequence[str]) -> str:
    """Return the path of the interpreter that has this name after the profile's setup lines. If the name has a `/`, or
    if no such interpreter starts, return the name.
    """
    if not setup or "/" in python:
        return python
    code = "import json, sys; print(json.dumps({'path': sys.executable}))"
    try:
        return str(ask_interpreter(python, "-c", code, setup=setup)["path"])
    except InterpreterError:
        return python


def ask(python: str, *, packages: bool = False) -> dict[str, Any]:
    """Return the facts that an interpreter reports about itself. With `packages`, they include its installed packages.

    Raises NoInterpreterError if the interpreter does not answer.
    """
    argv = ["-I", "-c", ASK, *(["packages"] if packages else [])]
    try:
        return ask_interpreter(os.path.expanduser(python), *argv)
    except InterpreterError as error:
        raise NoInterpreterError(f"the interpreter {python} {error}") from error


def _fits(found: str, requested: str | None) -> bool:
    return requested is None or found == requested or found.startswith(f"{requested}.")


def _candidates(python: str, version: str) -> Iterator[str]:
    """Yield paths of interpreters, first those with the version in their name. If several links lead to the same
    interpreter, only the first is yielded.
    """
    minor = ".".join(version.split(".")[:2])
    folders = [*os.environ.get("PATH", os.defpath).split(os.pathsep), *usual_folders()]
    named = [f"{folder}/python{minor}" for folder in folders]
    others = [
        path for folder in dict.fromkeys(folders) for path in sorted(glob.glob(f"{glob.escape(folder)}/python3*"))
    ]
    real = set()
    for path in [shutil.which(os.path.expanduser(python)) or "", *named, *others]:
        if "/shims" in path or not os.access(path, os.X_OK) or not _is_python(os.path.basename(path), python):
            continue
        if (target := os.path.realpath(path)) not in real:
            real.add(target)
            yield path


def _is_python(name: str, python: str) -> bool:
    """Return whether a file has an interpreter's name. `python3-config`, for example, is no such name."""
    digits = name[len("python") :].replace(".", "")
    return name == os.path.basename(python) or (name.startswith("python3") and digits.isdigit())

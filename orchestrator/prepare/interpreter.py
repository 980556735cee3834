"""Chooses the Python interpreter that trains on this machine. It is the interpreter that the user's shell would choose.

orch starts no interpreter to choose it. If the program is a shell script such as a shim of pyenv, a submit runs the
script to find its interpreter, and a plan only shows the script.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import UsageError
from orchestrator.protocol.reading import read_part

PATIENCE: Final = 10.0  # seconds in which an interpreter must answer
MOST_READ: Final = 4096
MOST_LISTED: Final = 1 << 16
ASK: Final = "import json, sys; print(json.dumps({'python': sys.executable}))"
OPTION: Final = "name another interpreter: --set profile.python=PATH, or python: in the profile"
_PYTHON: Final = re.compile(r"(python|pypy)[0-9.]*")
# The line that pip writes into a script if the path of its interpreter is too long for a `#!` line.
_EXEC: Final = re.compile(rb"^'''exec' (.+?) \"\$0\" \"\$@\"$", re.MULTILINE)


@dataclass(frozen=True)
class Interpreter:
    """An interpreter, and the reason why it was chosen."""

    path: str
    why: str


def of_shell(
    program: str, environ: Mapping[str, str], *, needs_torch: bool = False, starts: bool = True
) -> Interpreter:
    """Return the interpreter of a program. Without a program, return the interpreter of the active environment or, if
    none is active, orch's own.

    `program` is torchrun, accelerate, python or a similar program. It is empty if neither the command line nor the job
    names a program. With `needs_torch`, an active environment without torch is skipped if orch's own environment has
    torch. Without `starts`, a script is not run, and its path is returned in place of the interpreter. Raises
    UsageError if the program's interpreter does not answer.
    """
    found = shutil.which(program, path=environ.get("PATH", os.defpath)) if program else None
    if found is not None and (python := _of_program(os.path.abspath(found), environ, starts=starts)):
        return Interpreter(python, program if "/" in program else f"{program} on PATH")
    passed = ""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = environ.get(variable, "")
        python = f"{prefix}/bin/python"
        if not prefix or not os.access(python, os.X_OK):
            continue
        if needs_torch and not _has_torch(prefix) and _is_torch_here():
            passed = f"; ${variable} has no torch"
            continue
        return Interpreter(python, f"${variable}")
    return Interpreter(sys.executable, f"orch's own{passed}")


def of_conda(environment: str, environ: Mapping[str, str]) -> str:
    """Return the interpreter of the conda environment with this name or folder; empty if this machine has no such
    environment.
    """
    root = os.path.dirname(os.path.dirname(environ.get("CONDA_EXE", "")))
    roots = [each for each in (root, environ.get("MAMBA_ROOT_PREFIX", "")) if each]
    if "/" in environment:
        prefixes = [os.path.abspath(os.path.expanduser(environment))]
    elif environment == "base":
        prefixes = roots
    else:
        known = _head(os.path.expanduser("~/.conda/environments.txt"), MOST_LISTED)
        listed = known.decode("utf-8", "replace").splitlines()
        prefixes = [f"{each}/envs/{environment}" for each in roots]
        prefixes += [each for each in listed if os.path.basename(each) == environment]
    pythons = [f"{prefix}/bin/python" for prefix in prefixes]
    return next((each for each in pythons if os.access(each, os.X_OK)), "")


def _of_program(path: str, environ: Mapping[str, str], *, starts: bool) -> str:
    """Return the interpreter that runs a program; empty if the program is not in Python."""
    head = _head(path)
    is_python = _PYTHON.fullmatch(os.path.basename(path)) is not None
    if is_python and not head.startswith(b"#!"):
        return path
    # Like the kernel, split the `#!` line at blanks. Quotes have no meaning in it.
    words = head[2:].partition(b"\n")[0].decode("utf-8", "replace").split() if head.startswith(b"#!") else []
    name = os.path.basename(words[0]) if words else ""
    if name == "env" and len(words) > 1 and _PYTHON.fullmatch(words[-1]):
        return _answered(shutil.which(words[-1], path=environ.get("PATH", os.defpath)) or "", starts=starts)
    if _PYTHON.fullmatch(name):
        return words[0]
    if name == "sh" and (match := _EXEC.search(head)):
        return _first_word(match[1].decode("utf-8", "replace"))
    beside = path if is_python else f"{os.path.dirname(path)}/python"  # a shell script, such as a shim of pyenv
    return _answered(beside, starts=starts) if os.access(beside, os.X_OK) else ""


def _first_word(line: str) -> str:
    """Return the first word of a line of shell code; empty if the line is empty or a quotation mark is not closed."""
    try:
        return next(iter(shlex.split(line)), "")
    except ValueError:
        return ""


def _head(path: str, most: int = MOST_READ) -> bytes:
    """Return the first bytes of a file; empty if the file can't be read. Links are followed, because programs in
    ~/.local/bin are links.
    """
    try:
        return read_part(os.path.realpath(path), 0, most)
    except OSError:
        return b""


def _answered(python: str, *, starts: bool) -> str:
    """Return the path if it is an interpreter. If it is a script and `starts` is True, run the script and return the
    path of the interpreter that it starts.
    """
    is_script = starts and python and _head(python).startswith(b"#!")
    return str(_ask(python).get("python") or "") if is_script else python


def _ask(python: str) -> dict[str, Any]:
    """Start an interpreter, and return the facts that it reports. Raises UsageError if it does not answer within
    PATIENCE seconds.
    """
    from orchestrator.node.system.interpreter import InterpreterError, ask_interpreter

    try:
        return ask_interpreter(python, "-I", "-S", "-c", ASK, seconds=PATIENCE)
    except InterpreterError as error:
        raise UsageError(f"the interpreter {python} {error}", OPTION) from error


def _has_torch(prefix: str) -> bool:
    if glob.glob(f"{glob.escape(prefix)}/lib/python3*/site-packages/torch"):
        return True
    text = _head(f"{prefix}/pyvenv.cfg").decode("utf-8", "replace")
    return re.search(r"(?im)^include-system-site-packages\s*=\s*true", text) is not None


def _is_torch_here() -> bool:
    from importlib.util import find_spec

    return find_spec("torch") is not None


def check_starts(python: str, cache: Path) -> None:
    """Raise UsageError if an interpreter other than orch's own can't be started. A success is cached for later
    submissions.

    If the path does not exist, nothing is raised, because the agent reports the command that it could not start.
    """
    path = shutil.which(os.path.expanduser(python))
    if python == sys.executable or path is None:
        return
    info = os.stat(path)
    mark = cache / f"{info.st_dev}-{info.st_ino}-{info.st_size}-{info.st_mtime_ns}"
    if mark.exists():
        return
    _ask(path)
    if cache.parent.is_dir():
        cache.mkdir(mode=0o700, exist_ok=True)
        mark.touch()

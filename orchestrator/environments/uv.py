"""Runs uv on this machine to resolve locks to wheels. On the nodes, other code runs uv to install the wheels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

from orchestrator.errors import UsageError

LAST_LINES: Final = 12
NOBODYS: Final = Path("/")  # a folder that has no settings for uv
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/\s@]+@")


class UvError(Exception):
    """A uv command failed. The message contains the last lines of its output."""


@cache
def find_uv() -> Path:
    """Return the path of uv. Raises UsageError if uv is not installed."""
    beside = Path(sys.executable).absolute().parent / "uv"
    if os.access(beside, os.X_OK):
        return beside
    if (found := shutil.which("uv")) is not None:
        return Path(found)
    raise UsageError(
        "uv is not installed on this machine, and `environment` in the job needs it",
        "install it into orch's environment: pip install uv",
    )


def run_uv(*args: str, cwd: Path = NOBODYS, given: str = "") -> str:
    """Run a uv command and return its output. `given` is its stdin. Raises UvError if the command fails.

    uv takes settings and interpreters (`.venv`) from its working folder and all folders above. So a command runs in /
    unless it needs the job's folder. In the job's folder, `--python` must name the interpreter.
    """
    argv = [str(find_uv()), *args, "--no-python-downloads"]
    try:
        done = subprocess.run(argv, cwd=cwd, input=given, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UvError(f"uv can't be started: {error.strerror}") from error
    if done.returncode != 0:
        raise UvError(last_lines(done.stderr or done.stdout))
    return done.stdout


def last_lines(output: str) -> str:
    """Return the last lines of a program's output, without credentials in URLs."""
    return _CREDENTIALS.sub("", "\n".join(output.strip().splitlines()[-LAST_LINES:]))

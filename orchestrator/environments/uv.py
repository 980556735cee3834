"""Runs uv on this machine, which resolves locks to wheels. On the nodes, uv installs the wheels."""

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
NOBODYS: Final = Path("/")  # a folder without settings of uv
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/\s@]+@")


class UvError(Exception):
    """A uv command failed. The message has the last lines of its output."""


@cache
def find_uv() -> Path:
    """Return the path of uv. Raises UsageError if uv is not installed."""
    beside = Path(sys.executable).absolute().parent / "uv"
    if os.access(beside, os.X_OK):
        return beside
    if (found := shutil.which("uv")) is not None:
        return Path(found)
    raise UsageError(
        "uv is not installed on this machine, and environment: needs it", "install it beside orch: pip install uv"
    )


def run_uv(*args: str, cwd: Path = NOBODYS, given: str = "") -> str:
    """Return the output of a uv command. `given` is its input. Raises UvError if the command fails.

    uv takes settings and interpreters (`.venv`) from its working folder and from all folders above it. So a command
    runs in / unless it needs the job's folder. In the job's folder, `--python` has to name the interpreter.
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
    """Return the last lines of a program's output, without the credentials in URLs."""
    return _CREDENTIALS.sub("", "\n".join(output.strip().splitlines()[-LAST_LINES:]))

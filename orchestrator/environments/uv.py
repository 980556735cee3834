"""Runs uv on this machine. It turns locks into wheels here, and installs the wheels on the nodes."""

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
NOBODYS: Final = Path("/")
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/\s@]+@")


class UvError(Exception):
    """uv failed; the message has its last lines."""


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
    """Return the output of a uv command. Raises UvError with its last lines if it fails.

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


def last_lines(said: str) -> str:
    """Return the last lines of a program's output, without credentials."""
    return _CREDENTIALS.sub("", "\n".join(said.strip().splitlines()[-LAST_LINES:]))

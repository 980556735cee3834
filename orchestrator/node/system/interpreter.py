"""Runs a short program in another Python interpreter of this machine, and reads its answer."""

from __future__ import annotations

import glob
import os
import subprocess
from typing import Any

from orchestrator.node.system.shortages import shortage
from orchestrator.protocol.json_text import parse_json

ASK_SECONDS = 30.0
# Folders of interpreters that may not be on PATH. A login shell adds them, but SSH runs a command without login shell.
PLACES = (
    "/usr/bin", "/usr/local/bin", "~/.local/bin", "~/.pyenv/versions/*/bin", "~/.local/share/uv/python/*/bin",
    "/opt/*/bin", "/opt/python/*/bin", "~/*conda*/bin", "~/*conda*/envs/*/bin", "~/*forge*/bin", "~/*forge*/envs/*/bin",
)  # fmt: skip


def usual_folders() -> list[str]:
    """Return the folders of this machine that often contain interpreters, whether or not they are on PATH."""
    return [folder for place in PLACES for folder in sorted(glob.glob(os.path.expanduser(place)))]


class InterpreterError(Exception):
    """An interpreter does not answer. The text is the rest of a sentence whose subject is the interpreter."""


def ask_interpreter(python: str, *argv: str, seconds: float = ASK_SECONDS) -> dict[str, Any]:
    """Run `python ARGV`, and return the JSON object in the last line of its output. Raises InterpreterError if there is
    no such line.

    The interpreter is started in /, because with `-c` it would import modules from its working directory.
    """
    try:
        done = subprocess.run(
            [python, *argv], capture_output=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL, text=True,
            cwd="/",
        )  # fmt: skip
        found = parse_json(done.stdout.strip().rpartition("\n")[2] or "null")  # other lines may come before the answer
    except OSError as error:
        raise InterpreterError(f"can't be started: {shortage(error) or error.strerror}") from error
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise InterpreterError(f"does not answer like a Python interpreter: {error}") from error
    if not isinstance(found, dict):
        raise InterpreterError(f"fails: {done.stderr.strip()[-300:]}")
    return found

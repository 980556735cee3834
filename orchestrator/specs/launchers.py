"""Detects a launcher of ranks, such as torchrun, in a job's own command.

orch starts the command on every rank. With a launcher in the command, each rank would start all ranks again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from orchestrator.specs.wrappers import program_of

SHELLS: Final = ("sh", "bash", "dash", "ksh", "zsh")
MOST_BYTES: Final = 1 << 16  # how much of a script is searched
# A launcher's name counts at the beginning of a command: at the start of a line, after `;`, `&&` or `|`, or after words
# such as `exec`.
_LAUNCHER: Final = re.compile(
    r"(?:^|[;&|(]|\b(?:exec|time|nohup|then|do|run|env)\s)\s*(?:[A-Za-z_]\w*=\S*\s+)*(?:[\w.~/$\{\}-]*/)?"
    r"(torchrun|srun|mpirun|mpiexec|deepspeed|horovodrun|accelerate\s+launch"
    r"|python[\d.]*\s+-m\s+(?:torch\.distributed\.(?:run|launch)|accelerate\.commands\.launch))\b(?!\s*=)"
)


@dataclass(frozen=True)
class Launcher:
    """A launcher that a command starts, and the place (script and line) if the launcher is started by a script."""

    name: str
    script: str = ""
    line: int = 0
    text: str = ""  # the whole line

    def __str__(self) -> str:
        return f"{self.name} ({self.script}:{self.line})" if self.script else self.name


def launcher_in(command: Sequence[str], folder: Path) -> Launcher | None:
    """Return the launcher that a command starts, directly or in a shell script of this folder; None if it starts
    none.
    """
    words = program_of(command)
    if not words:
        return None
    if found := _LAUNCHER.match(" ".join([PurePosixPath(words[0]).name, *words[1:3]])):
        return Launcher(_in_words(found))
    if PurePosixPath(words[0]).name not in SHELLS:
        return _in_script(words[0], folder)
    options = [word for word in words[1:] if word.startswith("-")]
    rest = [word for word in words[1:] if not word.startswith("-")]
    if not rest:
        return None
    if any("c" in option.lstrip("-") for option in options if not option.startswith("--")):
        found = _LAUNCHER.search(rest[0])
        return Launcher(_in_words(found)) if found else None
    return _in_script(rest[0], folder)


def _in_script(name: str, folder: Path) -> Launcher | None:
    """Return the first launcher in a file that looks like a shell script; None if there is none."""
    if not os.path.isfile(folder / name):
        return None
    try:
        with (folder / name).open("rb") as file:
            text = file.read(MOST_BYTES).decode()
    except (OSError, ValueError):  # the file is only on the nodes, or it is not text
        return None
    first = text.partition("\n")[0]
    if first.startswith("#!") and not re.search(rf"\b({'|'.join(SHELLS)})\b", first):
        return None
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.partition(" #")[0]
        if not bare.lstrip().startswith("#") and (found := _LAUNCHER.search(bare)):
            return Launcher(_in_words(found), name, number, line.strip().removesuffix("\\").strip())
    return None


def _in_words(found: re.Match[str]) -> str:
    return " ".join(found[1].split())

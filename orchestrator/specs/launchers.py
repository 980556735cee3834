"""Detects a launcher of ranks in a job's own command: torchrun and its kind, and console scripts such as `trl`, which
start their ranks themselves.

orch starts the command on every rank. With a launcher in the command, each rank would start all ranks again.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from orchestrator.protocol.reading import read_part
from orchestrator.specs.spawning import Spawning
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
# Console scripts that are launchers: the package of the entry point, and the first words with which they start ranks.
_CONSOLE: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "axolotl": ("axolotl", ("train", "evaluate", "inference")),
    "composer": ("composer", ()),
    "llamafactory-cli": ("llamafactory", ("train",)),
    "trl": ("trl", ("dpo", "grpo", "kto", "reward", "rloo", "sft")),
    "tune": ("torchtune", ("run",)),
}
_ENTRY: Final = re.compile(r"^from ([\w.]+) import \w+", re.MULTILINE)  # the line of a console script
_IMPORTS_LAUNCHER: Final = re.compile(
    r"^\s*(?:from|import)\s+(?:torch\.distributed\.(?:run|launch|launcher)|accelerate\.commands\.launch)\b",
    re.MULTILINE,
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


def console_launcher(command: Sequence[str], folders: Sequence[str]) -> Spawning | None:
    """Return how a command starts its ranks if it is a console script of Python and a launcher; None if it is not.

    A console script imports its entry point. It is a launcher if the entry point's package is known as one, or if the
    file of the entry point imports a launcher of torch or accelerate. A script that none of the folders has, because it
    is only on the nodes, is recognised by its name.
    """
    words = program_of(command)
    name = PurePosixPath(words[0]).name if words else ""
    package, verbs = _CONSOLE.get(name, ("", ()))
    path = shutil.which(words[0], path=os.pathsep.join(folders)) if words else None
    if path is None:
        module = package
    else:
        first = _text(path)
        found = _ENTRY.search(first) if re.match(r"#!.*python", first) else None
        module = found[1] if found else ""
    is_known = (
        bool(package) and module.partition(".")[0] == package and (not verbs or words[1:2] in [[v] for v in verbs])
    )
    if is_known or (path is not None and module and _IMPORTS_LAUNCHER.search(_source(path, module))):
        return Spawning(" ".join([name, *words[1:2]] if is_known and verbs else [name]), 0, module, knows_nodes=False)
    return None


def _source(script: str, module: str) -> str:
    """Return the text of a module that is installed beside a console script; "" if it can't be read."""
    root, parts = Path(os.path.realpath(os.path.dirname(script))).parent, module.split(".")
    files = [Path(*parts).with_suffix(".py"), Path(*parts, "__init__.py"), Path(*parts, "__main__.py")]
    places = sorted(root.glob("lib/python3*/site-packages"))
    return "".join(_text(str(place / file)) for place in places for file in files)


def _text(path: str) -> str:
    """Return the beginning of a file; "" if it can't be read or is not text."""
    try:
        return read_part(path, 0, MOST_BYTES).decode()
    except (OSError, ValueError):
        return ""


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

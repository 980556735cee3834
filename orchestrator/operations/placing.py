"""Copies a run's outputs to the paths at which the script would have written them if a person had started it by
hand.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.backends.mirror.local import is_continued_by
from orchestrator.errors import UsageError
from orchestrator.operations.pull import copy_output
from orchestrator.protocol.outputs import ABOVE, ASIDE, BESIDE
from orchestrator.protocol.writing import named_folder
from orchestrator.runs.files.outputs import Output, outputs_of
from orchestrator.runs.store import RunDir

_LEVELS: Final = {BESIDE: "..", ABOVE: "../.."}


@dataclass(frozen=True)
class Placed:
    """The result of copying outputs into the code folder: the copied files, and the skipped files with reasons."""

    run_id: str
    folder: str
    files: tuple[str, ...]
    left_out: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return asdict(self)


def place_of(run: RunDir) -> Path | None:
    """Return the folder from which the run's code was copied; None if that folder no longer exists on this machine."""
    code_dir = run.record().code_dir
    return Path(code_dir) if code_dir and os.path.isdir(code_dir) else None


def place(run: RunDir, *, force: bool = False) -> Placed:
    """Copy the run's outputs into its code folder. Outputs that the script wrote next to the code folder are copied
    next to it.

    An existing file with different content is kept, unless the new file begins with that content or `force` is given.
    Raises UsageError if the code folder is not on this machine.
    """
    folder = place_of(run)
    if folder is None:
        raise UsageError(
            f"the folder that the code of {run.run_id} came from is not on this machine",
            f"copy the outputs to another folder: orch pull {run.run_id} --to DIR",
        )
    copied: list[str] = []
    left_out: list[str] = []
    for output, top, path, why in _targets(run, folder):
        if why:
            left_out.append(f"{output.path}: {why}")
            continue
        above, _, name = path.rpartition("/")
        try:
            # The user's own links to folders are followed, because the program would write through them by hand.
            with named_folder(top / above, shared=True) as into:
                kind, is_kept = into.kind_of(name), is_continued_by(into, name, output.file)
                if kind not in (None, stat.S_IFREG, stat.S_IFLNK):
                    left_out.append(f"{top / path} is there and is no file")
                elif not force and not is_kept:
                    left_out.append(f"{top / path} is there with other content; --force replaces it")
                elif copy_output(run, output, into, name) is not None:
                    copied.append(str(top / path))
        except OSError as error:
            left_out.append(f"{top / path}: {error.filename}: {error.strerror}")
    return Placed(run.run_id, str(folder), tuple(copied), tuple(left_out))


def _targets(run: RunDir, folder: Path) -> Iterator[tuple[Output, Path, str, str]]:
    """Yield each output with the folder and the path in it to which it is copied. If it must not be copied, the last
    value is the reason.
    """
    for output in outputs_of(run):
        first, _, rest = output.path.partition("/")
        if output.node or first == ASIDE:
            yield output, folder, "", "copy it by hand, because another output has the same name"
        elif first in _LEVELS and rest:
            # another machine must not be able to write ~/.ssh here
            hidden = any(part.startswith(".") for part in rest.split("/"))
            why = "hidden files outside of the code folder are not written" if hidden else ""
            yield output, Path(os.path.normpath(folder / _LEVELS[first])), rest, why
        elif ".git" in output.path.split("/"):
            yield output, folder, "", "git would run what is written there"
        else:
            yield output, folder, output.path, ""

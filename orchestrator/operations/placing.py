"""Copies a run's outputs to the paths at which the script would have written them if a person had started it by
hand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.backends.mirror.local import is_continued_by
from orchestrator.errors import UsageError
from orchestrator.operations.pull import copy_output
from orchestrator.protocol.outputs import ABOVE, ASIDE, BESIDE
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
    for output, target, why in _targets(run, folder):
        if target is None:
            left_out.append(f"{output.path}: {why}")
        elif target.exists() and not target.is_file():
            left_out.append(f"{target} is there and is no file")
        elif above := next((each for each in target.parents if each.is_file()), None):
            left_out.append(f"{target}: {above} is there and is no folder")
        elif not force and not is_continued_by(target, output.file):
            left_out.append(f"{target} is there with other content; --force replaces it")
        elif copy_output(run, output, target, output.path) is not None:
            copied.append(str(target))
    return Placed(run.run_id, str(folder), tuple(copied), tuple(left_out))


def _targets(run: RunDir, folder: Path) -> Iterator[tuple[Output, Path | None, str]]:
    """Yield each output with the path to which it is copied or, if it must not be copied, with the reason."""
    for output in outputs_of(run):
        first, _, rest = output.path.partition("/")
        if output.node or first == ASIDE:
            yield output, None, "by hand, another file has this name"
        elif first in _LEVELS and rest:
            # another machine must not be able to write ~/.ssh here
            hidden = any(part.startswith(".") for part in rest.split("/"))
            target = Path(os.path.normpath(folder / _LEVELS[first] / rest))
            yield output, None if hidden else target, "hidden files outside of the code folder are not written"
        elif ".git" in output.path.split("/"):
            yield output, None, "git would run what is written there"
        else:
            yield output, folder / output.path, ""

"""Reads the Python program that every rank of a job runs, as it is in the code folder."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.protocol.reading import read_part
from orchestrator.specs.program import program_of

if TYPE_CHECKING:  # a submit of files that were read before must not wait for pydantic
    from orchestrator.specs.job import Job

MOST_BYTES: Final = 1 << 20
MOST_FILES: Final = 50


def source_of(job: Job, folder: Path) -> tuple[str, bytes]:
    """Return the program's file, relative to the folder, and its text, which is empty if it can't be read here."""
    script = _script_of(job, folder)
    return (script, _text_of(folder / script)) if script else ("", b"")


def _text_of(path: Path) -> bytes:
    """Return the beginning of a file; empty if it is no ordinary file, or belongs to another user."""
    try:
        return read_part(os.path.realpath(path), 0, MOST_BYTES)
    except (OSError, ValueError):
        return b""


def _options_in(text: bytes) -> set[str]:
    return {option for option in ("--local_rank", "--local-rank") if option.encode() in text}


def with_known_option(job: Job, folder: Path) -> Job:
    """Return the job with its `local_rank_option` in the spelling that the program has.

    torch.distributed.launch passes --local-rank since torch 2.0, and --local_rank before, as deepspeed does. A program
    that has one of them alone would refuse the other.
    """
    if job.local_rank_option is None:
        return job
    script, text = source_of(job, folder)
    known = _options_in(text)
    if script and not known:  # the parser may be in a module beside the program
        beside = sorted((folder / script).parent.glob("*.py"))[:MOST_FILES]
        known = _options_in(b"".join(_text_of(path) for path in beside))
    if len(known) != 1 or job.local_rank_option in known:
        return job
    return job.model_copy(update={"local_rank_option": known.pop()})


def _script_of(job: Job, folder: Path) -> str:
    """Return the file of the Python program that every rank runs; empty if there is none."""
    if job.training is not None:
        return ""
    kind, target, args = program_of(job)
    if kind == "command":
        is_python = re.fullmatch(r"python[\d.]*", os.path.basename(target)) is not None
        return args[0] if is_python and args and args[0].endswith(".py") else ""
    if kind == "script":
        return target
    path = target.replace(".", "/")
    return next((each for each in (f"{path}.py", f"{path}/__main__.py") if (folder / each).is_file()), "")

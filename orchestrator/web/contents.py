"""The contents of a run's outputs and checkpoints. A request returns a bounded part of one file that the page has
listed.

Training programs write these files, so their bytes are sent as a download without a content type. The page's script
displays texts as text, and images and sounds with content types from a fixed list. So no browser interprets a file as a
page.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import StoreError, UsageError
from orchestrator.protocol.reading import info_of, opened
from orchestrator.runs.files import checkpoints
from orchestrator.runs.files.checkpoints import Checkpoint
from orchestrator.runs.files.outputs import outputs_of
from orchestrator.runs.store import RunDir
from orchestrator.views.reader import Reader

MOST_BYTES: Final = 32 << 20  # the most bytes in one answer
MOST_ENTRIES: Final = 100  # the most files of a checkpoint that are listed


@dataclass(frozen=True)
class Part:
    """Some bytes of a file, and the size of the whole file."""

    data: bytes
    size: int


def entries_of(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Return the first files of a checkpoint with their sizes, without links and special files."""
    found = list[dict[str, Any]]()
    for folder, names, files in os.walk(checkpoint.path):
        names.sort()
        for file in sorted(files)[: MOST_ENTRIES - len(found)]:
            try:
                size = info_of(Path(folder, file), checkpoint.path).st_size
            except OSError:
                continue
            found.append({"path": os.path.relpath(f"{folder}/{file}", checkpoint.path), "bytes": size})
        if len(found) >= MOST_ENTRIES:
            break
    return found


def part_of(reader: Reader, name: str, query: Mapping[str, str]) -> Part:
    """Return bytes of an output or of a checkpoint's file. Raises UsageError if the run has no such file."""
    offset, count = (number_of(query, key) for key in ("offset", "count"))
    run, path = reader.find(name), query.get("path", "")
    file, below = _in_checkpoint(run, query["checkpoint"], path) if "checkpoint" in query else _output(run, path)
    try:
        with opened(file, below) as content:
            size = os.fstat(content.fileno()).st_size
            content.seek(offset or 0)
            return Part(content.read(min(MOST_BYTES if count is None else count, MOST_BYTES)), size)
    except OSError as error:
        raise StoreError(f"{file} can't be read: {error.strerror}") from error


def _output(run: RunDir, path: str) -> tuple[Path, Path]:
    for output in outputs_of(run):
        if output.path == path:
            return output.file, output.below
    raise UsageError(f"the run has no output '{path}'", "its files are listed on the page of the run")


def _in_checkpoint(run: RunDir, name: str, path: str) -> tuple[Path, Path]:
    for checkpoint in checkpoints.all_of(run):
        if checkpoint.path.name == name and any(entry["path"] == path for entry in entries_of(checkpoint)):
            return checkpoint.path / path, checkpoint.path.parent
    said = f"no checkpoint '{name}' of the run has a file '{path}'"
    raise UsageError(said, "its files are listed on the page of the run")


def number_of(query: Mapping[str, str], name: str) -> int | None:
    """Return a number in a request; None if it is missing. Raises UsageError if the text is not a number."""
    value = query.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal()) or len(value) > 18:
        raise UsageError(f"{name}={value[:40]} is not a number")
    return int(value)

"""What was made of files, kept for as long as they stay as they are: a second look at a run costs a few stats."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

_Value = TypeVar("_Value")
Signature = tuple[int, int, int] | None


class FileCache:
    """Keeps what was made of each file, and makes it anew only when the file's time, size or inode has changed."""

    def __init__(self) -> None:
        self._of_file: dict[str, tuple[Signature, Any]] = {}
        self._of_parts: dict[str, tuple[tuple[Any, ...], Any]] = {}

    def of_file(self, path: str, read: Callable[[], _Value]) -> _Value:
        """Return what `read` makes of the file; what it raises is raised each time."""
        signature = signature_of(path)  # before it is read: what is written meanwhile is seen by the next look
        kept = self._of_file.get(path)
        if kept is None or kept[0] != signature:
            kept = self._of_file[path] = (signature, read())
        value: _Value = kept[1]
        return value

    def of_parts(self, name: str, parts: Sequence[Any], join: Callable[[], _Value]) -> _Value:
        """Return what `join` makes of these parts, the very same object for as long as they are the same objects."""
        kept = self._of_parts.get(name)
        if kept is None or len(kept[0]) != len(parts) or any(a is not b for a, b in zip(kept[0], parts, strict=True)):
            kept = self._of_parts[name] = (tuple(parts), join())
        value: _Value = kept[1]
        return value


def signature_of(path: str) -> Signature:
    """Return what changes with a file's contents: its time, size and inode; None where it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino

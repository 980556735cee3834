"""Caches values that are computed from a file until the file changes. For an unchanged file, a call costs one stat."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

_Value = TypeVar("_Value")
Signature = tuple[int, int, int] | None
_READ: Final = object()


class FileCache:
    """Caches a value for each file, until the file's time, size or inode changes."""

    def __init__(self) -> None:
        self._of_file: dict[str, tuple[Signature, Any]] = {}
        self._of_parts: dict[str, tuple[tuple[Any, ...], Any]] = {}

    def of_file(self, path: str, read: Callable[[], _Value], missing: Any = _READ) -> _Value:
        """Return the result of `read`, cached until the file changes. Errors of `read` are not cached.

        If the file does not exist, return `missing`. Without `missing`, `read` is called in that case too.
        """
        signature = signature_of(path)  # taken before reading, so that the next call detects a later write
        kept = self._of_file.get(path)
        if signature is None and missing is not _READ:
            kept = signature, missing
        elif kept is None or kept[0] != signature:
            kept = self._of_file[path] = (signature, read())
        value: _Value = kept[1]
        return value

    def of_parts(self, name: str, parts: Sequence[Any], join: Callable[[], _Value]) -> _Value:
        """Return the result of `join`, cached under `name` as long as the parts are the same objects."""
        kept = self._of_parts.get(name)
        if kept is None or len(kept[0]) != len(parts) or any(a is not b for a, b in zip(kept[0], parts, strict=True)):
            kept = self._of_parts[name] = (tuple(parts), join())
        value: _Value = kept[1]
        return value


def signature_of(path: str) -> Signature:
    """Return the file's time, size and inode, or None if it does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino

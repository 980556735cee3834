"""What can be made anew, but takes long: kept in a private folder, under a key that names all that decides it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from orchestrator.node.system.private import make_private, why_unsafe
from orchestrator.protocol.files import PRIVATE, write_atomic
from orchestrator.protocol.reading import read_regular
from orchestrator.version import __version__

MOST_BYTES = 8 << 20


def key_of(*parts: Any) -> str:
    """Return the key of what follows from these parts, JSON values, and from this version of orch."""
    return hashlib.sha256(json.dumps([__version__, *parts]).encode()).hexdigest()


def take(path: str, key: str) -> bytes | None:
    """Return what is kept there under the key; None where it is another's, damaged, or others may write there."""
    if why_unsafe(os.path.dirname(path)) is not None:
        return None
    try:
        digest, _, body = read_regular(path, MOST_BYTES).partition(b"\n")
    except OSError:
        return None
    return body if digest == _digest(key, body) else None


def keep(path: str, key: str, body: bytes) -> None:
    """Keep it there, in the place of what was; where that can't be, it is made anew the next time."""
    folder = os.path.dirname(path)
    with contextlib.suppress(OSError):
        make_private(folder, exist_ok=True)
        if why_unsafe(folder) is None:
            write_atomic(path, _digest(key, body) + b"\n" + body, mode=PRIVATE, durable=False)


def sources(package: str, names: Iterable[str]) -> list[tuple[str, int, int]]:
    """Return the Python files of a package's parts, folders or files, and what tells that one has changed."""
    found = []
    for path in (each for name in names for each in _files_of(os.path.join(package, name))):
        info = os.stat(path)
        found.append((path, info.st_mtime_ns, info.st_size))
    return sorted(found)


def _files_of(part: str) -> Iterator[str]:
    if part.endswith(".py"):
        yield part
    for above, _, files in os.walk(part):
        yield from (os.path.join(above, file) for file in files if file.endswith(".py"))


def _digest(key: str, body: bytes) -> bytes:
    """Return what says that a body is whole, and that key's."""
    return hashlib.sha256(key.encode() + body).hexdigest().encode()

"""A cache in a private folder for results that take long to compute. The key of a result identifies everything from
which the result was computed.
"""

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
    """Return the cache key for results that depend on these parts (JSON values) and on this version of orch."""
    return hashlib.sha256(json.dumps([__version__, *parts]).encode()).hexdigest()


def take(path: str, key: str) -> bytes | None:
    """Return the cached bytes for the key. Return None if the file is missing, damaged, not private, or has another
    key.
    """
    if why_unsafe(os.path.dirname(path)) is not None:
        return None
    try:
        digest, _, body = read_regular(path, MOST_BYTES).partition(b"\n")
    except OSError:
        return None
    return body if digest == _digest(key, body) else None


def keep(path: str, key: str, body: bytes) -> None:
    """Write a result to the cache file for the key. Failures are ignored, because the result can be computed again."""
    folder = os.path.dirname(path)
    with contextlib.suppress(OSError):
        make_private(folder, exist_ok=True)
        if why_unsafe(folder) is None:
            write_atomic(path, _digest(key, body) + b"\n" + body, mode=PRIVATE, durable=False)


def sources(package: str, names: Iterable[str]) -> list[tuple[str, int, int]]:
    """Return (path, mtime, size) of all Python files in the named modules and folders of a package.

    If this list is a part of a key, a change of the code invalidates the cached results.
    """
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
    """Return a hash of the key and the body. A cached body with another hash is damaged or belongs to another key."""
    return hashlib.sha256(key.encode() + body).hexdigest().encode()

"""Computes the sha256 of files in chunks."""

from __future__ import annotations

import hashlib
from typing import IO

CHUNK = 1 << 20


def digest_of(source: IO[bytes], copy_to: IO[bytes] | None = None) -> str:
    """Read the rest of a file, optionally copy it, and return the sha256 of the bytes read."""
    digest = hashlib.sha256()
    while chunk := source.read(CHUNK):
        digest.update(chunk)
        if copy_to is not None:
            copy_to.write(chunk)
    return digest.hexdigest()

"""The sha256 of what is read, piece by piece."""

from __future__ import annotations

import hashlib
from typing import IO

CHUNK = 1 << 20


def digest_of(source: IO[bytes], copy_to: IO[bytes] | None = None) -> str:
    """Read all that is left of a file, copy it where that is asked for, and return the sha256 of what was read."""
    digest = hashlib.sha256()
    while chunk := source.read(CHUNK):
        digest.update(chunk)
        if copy_to is not None:
            copy_to.write(chunk)
    return digest.hexdigest()

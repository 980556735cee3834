"""Computes the sha256 of a file in chunks."""

from __future__ import annotations

import hashlib
from typing import IO

CHUNK = 1 << 20


def digest_of(source: IO[bytes], copy_to: IO[bytes] | None = None) -> str:
    """Return the sha256 of a file from the present position to its end. If `copy_to` is given, also copy these bytes to
    that file.
    """
    digest = hashlib.sha256()
    while chunk := source.read(CHUNK):
        digest.update(chunk)
        if copy_to is not None:
            copy_to.write(chunk)
    return digest.hexdigest()

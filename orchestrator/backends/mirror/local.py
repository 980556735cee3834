"""Copies files of a run on this machine to a folder that a user has named. Each file is hashed during its copy."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, Final

from orchestrator.backends.mirror.policy import USERS
from orchestrator.protocol.arriving import PIECE, Arriving
from orchestrator.protocol.checkpoints.checksum import Algorithm, Hasher, hasher
from orchestrator.protocol.reading import opened

TRIES: Final = 3  # for a file that is rewritten during the copy


def copy_latest(source: Path, target: Path, below: Path | None = None) -> tuple[int, str, str]:
    """Copy the present contents of a file. If the target has the beginning of these contents, copy only the rest.

    Return the size, the sha256, and what was done: "kept", "continued" or "copied". If the file is rewritten during the
    copy, it is copied again, up to TRIES times. Raises OSError if a file can't be read or written.
    """
    os.makedirs(target.parent, exist_ok=True)
    for _ in range(TRIES):
        with opened(source, below) as reading:
            facts = os.fstat(reading.fileno())
            digest, how = _copy(reading, facts, os.path.realpath(target) if target.is_symlink() else str(target))
            now = os.fstat(reading.fileno())
        if now.st_size > facts.st_size or (facts.st_size, facts.st_mtime_ns) == (now.st_size, now.st_mtime_ns):
            break
    return facts.st_size, digest, how


def _copy(reading: BinaryIO, facts: os.stat_result, target: str) -> tuple[str, str]:
    try:
        there = os.stat(target)
    except FileNotFoundError:
        there = None
    if there is not None and there.st_size <= facts.st_size:
        digest = hasher(Algorithm.SHA256)
        with open(target, "r+b", buffering=0) as writing:
            if _begins_with(reading, writing, there.st_size, digest):
                _append(reading, writing, facts.st_size - there.st_size, digest)
                return digest.hexdigest(), "kept" if there.st_size == facts.st_size else "continued"
        reading.seek(0)
    arriving = Arriving(target, f"{facts.st_size}-{facts.st_mtime_ns}", facts.st_size, durable=False, mode=USERS)
    begun = _arrive(reading, arriving, facts.st_size)
    arriving.finish(mode=None if there is None else stat.S_IMODE(there.st_mode))
    return arriving.digest.hexdigest(), "continued" if begun else "copied"


def is_continued_by(target: Path, source: Path) -> bool:
    """Return True if copying the source to the target loses nothing: the target is missing, or the source begins with
    the target's contents.
    """
    try:
        with opened(source) as reading, opened(target.resolve()) as writing:
            return _begins_with(reading, writing, os.fstat(writing.fileno()).st_size, hasher(Algorithm.SHA256))
    except FileNotFoundError:
        return not os.path.lexists(target)
    except OSError:
        return False


def _begins_with(reading: BinaryIO, writing: Any, count: int, digest: Hasher) -> bool:
    """Read the next `count` bytes of both files. Return True if they are equal."""
    while count and (block := reading.read(min(count, PIECE))):
        if writing.read(len(block)) != block:
            return False
        digest.update(block)
        count -= len(block)
    return not count


def _append(reading: BinaryIO, writing: Any, count: int, digest: Hasher) -> None:
    while count and (block := reading.read(min(count, PIECE))):
        rest = memoryview(block)
        while rest:
            rest = rest[writing.write(rest) :]
        digest.update(block)
        count -= len(block)


def _arrive(reading: BinaryIO, arriving: Arriving, size: int) -> int:
    """Copy the missing rest of a file. Return how many bytes an earlier, interrupted copy had. Raises OSError if a file
    can't be read.
    """
    begun = reading.seek(arriving.size)
    try:
        arriving.fill(reading, size - begun)
    except EOFError:  # it is shorter by now
        pass
    except BaseException:
        arriving.leave()
        raise
    return begun

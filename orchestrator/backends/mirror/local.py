"""Copies files of a run on this machine to a folder that a user has named. Each file is hashed during its copy."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, Final

from orchestrator.protocol.arriving import PIECE, Arriving
from orchestrator.protocol.checkpoints.checksum import Algorithm, Hasher, hasher
from orchestrator.protocol.reading import open_own, opened
from orchestrator.protocol.writing import USERS, Folder

TRIES: Final = 3  # for a file that is rewritten during the copy


def copy_latest(source: Path, folder: Folder, name: str, below: Path | None = None) -> tuple[int, str, str]:
    """Copy the present contents of a file to a file of this name. If that file has the beginning of these contents,
    copy only the rest.

    The copy of a program is executable. Return the size, the sha256, and what was done: "kept", "continued" or
    "copied". If the file is rewritten during the copy, it is copied again, up to TRIES times. Raises OSError if a file
    can't be read or written.
    """
    for _ in range(TRIES):
        with opened(source, below) as reading:
            facts = os.fstat(reading.fileno())
            digest, how = _copy(reading, facts, folder, name)
            now = os.fstat(reading.fileno())
        if now.st_size > facts.st_size or (facts.st_size, facts.st_mtime_ns) == (now.st_size, now.st_mtime_ns):
            break
    if facts.st_mode & stat.S_IXUSR and (copy := folder.own_file(name)) is not None:
        mode = stat.S_IMODE(os.fstat(copy).st_mode)
        os.fchmod(copy, mode | (mode & 0o444) >> 2)
        os.close(copy)
    return facts.st_size, digest, how


def _copy(reading: BinaryIO, facts: os.stat_result, folder: Folder, name: str) -> tuple[str, str]:
    mode = None
    if (descriptor := folder.own_file(name, os.O_RDWR)) is not None:
        with open(descriptor, "r+b", buffering=0) as writing:
            there, digest = os.fstat(descriptor), hasher(Algorithm.SHA256)
            mode = stat.S_IMODE(there.st_mode)
            if there.st_size <= facts.st_size and _begins_with(reading, writing, there.st_size, digest):
                _append(reading, writing, facts.st_size - there.st_size, digest)
                return digest.hexdigest(), "kept" if there.st_size == facts.st_size else "continued"
        reading.seek(0)
    version = f"{facts.st_size}-{facts.st_mtime_ns}"
    arriving = Arriving(name, version, facts.st_size, durable=False, mode=USERS, folder=folder)
    begun = _arrive(reading, arriving, facts.st_size)
    arriving.finish(mode=mode)
    return arriving.digest.hexdigest(), "continued" if begun else "copied"


def is_continued_by(folder: Folder, name: str, source: Path) -> bool:
    """Return True if copying the source to a file of this name loses nothing: the file is missing, or the source begins
    with the file's contents.
    """
    try:
        with open(open_own(name, os.O_RDONLY, folder=folder.descriptor), "rb") as writing, opened(source) as reading:
            return _begins_with(reading, writing, os.fstat(writing.fileno()).st_size, hasher(Algorithm.SHA256))
    except FileNotFoundError:
        return True
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

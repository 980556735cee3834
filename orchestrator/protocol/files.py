"""Files as all sides write them: whole or not at all, a line at a time, or under a lock. Python 3.9.

What fails raises OSError; each package says it in its own words.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PRIVATE = 0o600
READABLE = 0o644


def write_atomic(path: str | Path, data: bytes, *, mode: int = READABLE, durable: bool = True) -> None:
    """Write a file so that a reader, or a crash, finds all of it or the one before; `durable`: on the disk by then.

    Without `durable` a power cut may cost the file, for what is written often and can be told again.
    """
    with replacing(path, durable=durable) as partial:
        # Made anew under a name that nobody can guess, so that no link laid there beforehand is followed.
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:
            file.write(data)


def read_regular(path: str | Path, most: int) -> bytes:
    """Return what is in a file that another may have laid there; OSError where it is a link, no file, or too large."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no ordinary file")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(most + 1)
    finally:
        os.close(descriptor)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most >> 20} MiB")
    return data


@contextlib.contextmanager
def replacing(path: str | Path, *, durable: bool = True) -> Iterator[str]:
    """Yield a hidden name beside `path`; what was written there takes the place of `path`, on an error nothing does."""
    partial = temporary_name(path)
    try:
        yield partial
        if durable:
            _sync(partial, os.O_RDONLY)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    if durable:
        sync_folder(os.path.dirname(path) or ".")


def write_json(path: str | Path, value: Any, *, mode: int = READABLE, durable: bool = True) -> None:
    """Write a value as JSON, as `write_atomic` does."""
    write_atomic(path, json.dumps(value).encode(), mode=mode, durable=durable)


def temporary_name(path: str | Path) -> str:
    """Return a hidden name beside `path`, which says by `writer_of` whose it is."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{os.urandom(4).hex()}.{os.getpid()}.tmp")


def writer_of(name: str) -> int | None:
    """Return the pid of the process that writes a temporary file; None where it is another name."""
    parts = name.split(".")
    return int(parts[-2]) if parts[-1] == "tmp" and len(parts) > 2 and parts[-2].isdecimal() else None


def sync_folder(folder: str | Path) -> None:
    """Force a folder's entries to the disk, so that a rename within it survives a power cut."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: str | Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_lines(path: str | Path, lines: Iterable[str]) -> None:
    """Append lines, all at once, to a file that several processes may append to."""
    with open(path, "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        whole = file.seek(0, os.SEEK_END) == 0 or os.pread(file.fileno(), 1, file.tell() - 1) == b"\n"
        # What a full disk or a crash has cut off must not take this line with it.
        file.write((b"" if whole else b"\n") + "".join(f"{line}\n" for line in lines).encode())


@contextlib.contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Hold the kernel's lock of a file, made where it is missing: of two processes one waits, and a kill frees it."""
    with open(path, "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

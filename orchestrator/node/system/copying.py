"""Copies a file by reflink if the file system supports it: the copy then shares the blocks of the original until one of
them is changed, so it costs neither time nor disk.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from typing import IO

CHUNK = 1 << 20
_FICLONE = 0x40049409  # Linux's ioctl for a reflink


def is_cloned(source: IO[bytes], target: IO[bytes]) -> bool:
    """Make `target` a reflink of `source`. Return False if their file systems don't support that."""
    try:
        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
    except OSError:
        return False
    return True


def copy_file(source: str, target: str, mode: int, *, only_clone: bool = False) -> bool:
    """Copy a file with its modification time to a new file with this mode. No link at `source` is followed.

    With `only_clone`, return False and leave no file if the copy can't be a reflink.
    """
    reading = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(reading, "rb") as old:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(writing, "wb") as new:
            if not is_cloned(old, new):
                if only_clone:
                    os.unlink(target)
                    return False
                shutil.copyfileobj(old, new, CHUNK)
        info = os.fstat(reading)
        os.utime(target, ns=(info.st_mtime_ns, info.st_mtime_ns))
    return True

"""Writes files atomically, line by line, or under a lock.

Failures raise OSError, and each caller adds its own message.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from orchestrator.protocol.reading import READABLE, open_own

PRIVATE = 0o600
WRITING_SECONDS = 60.0  # seconds that a write by another machine may take
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
REMOVAL_PASSES = 8  # attempts to empty a folder in which other processes may still finish writing a file
_SHARED = os.O_RDWR | os.O_CREAT | os.O_APPEND  # flags for files that several processes write or lock


def write_atomic(
    path: str | Path, data: bytes, *, mode: int = READABLE, durable: bool = True, folder: int | None = None
) -> None:
    """Write a file atomically. With `durable`, the file is on the disk when this function returns. The path is relative
    to the open folder `folder`, if it is given.

    Without `durable`, a power cut may lose the file, so use it only for files that are written often and can be written
    again.
    """
    with replacing(path, durable=durable, folder=folder) as partial:
        # Created under a random name, so that no link can have been placed there beforehand.
        descriptor = open_own(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, folder=folder)
        with open(descriptor, "wb") as file:
            file.write(data)


@contextlib.contextmanager
def replacing(path: str | Path, *, durable: bool = True, folder: int | None = None) -> Iterator[str]:
    """Yield a hidden name beside `path`. At the end of the block, rename the file of that name to `path`, unless the
    block raised. The path is relative to the open folder `folder`, if it is given.
    """
    partial = temporary_name(path)
    try:
        yield partial
        if durable:
            _sync(partial, os.O_RDONLY, folder)
        os.replace(partial, path, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial, dir_fd=folder)
        raise
    if durable:
        sync_folder(os.path.dirname(path) or ".", folder)


def write_json(path: str | Path, value: Any, *, mode: int = READABLE, durable: bool = True) -> None:
    """Write a value as JSON. The other parameters are those of `write_atomic`."""
    write_atomic(path, json.dumps(value).encode(), mode=mode, durable=durable)


def overwrite_line(path: str | Path, value: Any, size: int) -> None:
    """Overwrite a file with one JSON line of exactly `size` bytes. This works on a full disk too.

    A reader may see a mixture of the old and the new line, and must then read again. Raises ValueError if the value is
    too long.
    """
    line = json.dumps(value).encode().ljust(size - 1) + b"\n"
    if len(line) > size:
        raise ValueError(f"{path}: {len(line)} bytes do not fit into {size} bytes")
    descriptor = open_own(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(descriptor, line, 0)
    finally:
        os.close(descriptor)


def temporary_name(path: str | Path) -> str:
    """Return a hidden name beside `path`. The name identifies the writer, so that `is_being_written` can find out
    whether the writer still runs.
    """
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{os.urandom(4).hex()}.{_this_machine()}.{os.getpid()}.tmp")


def is_being_written(path: str | Path) -> bool:
    """Return whether the writer of a temporary file may still be writing.

    A writer on this machine is looked up by its pid. A writer on another machine that shares the folder counts as
    active for WRITING_SECONDS after its last write.
    """
    machine, process = _writer(path)
    if machine == _this_machine():
        return _is_running(process)
    if not machine:
        return False
    try:
        return time.time() - os.stat(path).st_mtime < WRITING_SECONDS
    except OSError:
        return False


def has_lost_its_writer(path: str | Path) -> bool:
    """Return whether a temporary file was written by a process of this machine that has ended. The file's age does
    not matter.
    """
    machine, process = _writer(path)
    return machine == _this_machine() and not _is_running(process)


def _is_running(pid: str) -> bool:
    """Return whether a process with this pid exists, whoever started it."""
    try:
        os.kill(int(pid), 0)
    except PermissionError:  # the process belongs to another user
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return int(pid) > 0  # 0 stands for this process's group


def _writer(path: str | Path) -> tuple[str, str]:
    """Return (machine, pid) of the writer from a name that `temporary_name` made. Both are empty for any other name."""
    parts = os.path.basename(path).split(".")
    if parts[-1] != "tmp" or len(parts) < 5 or not parts[-2].isdecimal():
        return "", ""
    return parts[-3], parts[-2]


def _this_machine() -> str:
    return f"{zlib.crc32(os.uname().nodename.encode()):08x}"


def folder_size(folder: str | Path) -> int:
    """Return the total size in bytes of all files below a folder. Files that vanish meanwhile count as 0, and links
    are not followed.
    """
    total = 0
    for above, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(above, name)).st_size
    return total


def remove_tree(folder: str | Path) -> None:
    """Delete a folder with its content. Several processes may do so at once, and a missing folder is no error.

    Another process may create a file after the folder was listed. Such a file is deleted in a further pass.
    """
    import shutil

    for rest in reversed(range(REMOVAL_PASSES)):
        try:
            shutil.rmtree(folder, onerror=_unless_gone)
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or not rest:
                raise


def _unless_gone(_: Any, path: str, problem: Any) -> None:
    if not isinstance(problem[1], FileNotFoundError):
        raise problem[1]


def sync_folder(folder: str | Path, above: int | None = None) -> None:
    """Force a folder's entries to the disk, so that a rename within it survives a power cut. The path is relative to
    the open folder `above`, if it is given.
    """
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY, above)


def _sync(path: str | Path, flags: int, folder: int | None) -> None:
    descriptor = os.open(path, flags | os.O_NOFOLLOW * (folder is not None), dir_fd=folder)
    try:
        if sys.platform == "darwin":
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # on macOS, fsync leaves the data in the disk's cache
        else:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_in_place(temporary: str, path: str) -> None:
    """Move the files of a temporary folder to the folder of `path`, and replace `path`. The file or folder with the
    name of `path` is moved first, because a file beside it, such as a tracker, marks the checkpoint as complete.
    """
    import shutil

    folder, first = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    for name in (first, *(name for name in os.listdir(temporary) if name != first)):
        os.replace(f"{temporary}/{name}", f"{folder}/{name}")
    sync_folder(folder)


def sync_filesystem(folder: str | Path) -> None:
    """Sync the whole file system of a folder to the disk. For many files this is faster than syncing each file."""
    if sys.platform == "darwin":  # macOS has no syncfs
        os.sync()
        return
    import ctypes

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(descriptor)


def append(path: str | Path, data: bytes) -> int:
    """Append data to a file that only this process writes, in a single write. Return the number of written bytes, which
    is smaller if the disk is full.
    """
    descriptor = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        return os.write(descriptor, data)
    finally:
        os.close(descriptor)


def append_lines(path: str | Path, lines: Iterable[str]) -> None:
    """Append lines to a file in a single write, because several processes may append to it."""
    with open(open_own(path, _SHARED), "a+b") as file:
        _flock(file.fileno(), fcntl.LOCK_EX, path)
        whole = file.seek(0, os.SEEK_END) == 0 or os.pread(file.fileno(), 1, file.tell() - 1) == b"\n"
        # If a full disk or a crash has cut off the last line, the new line must still be a line of its own.
        file.write((b"" if whole else b"\n") + "".join(f"{line}\n" for line in lines).encode())


@contextlib.contextmanager
def locked(path: str | Path, *, create: bool = True) -> Iterator[None]:
    """Hold the kernel's lock of a file during the block. Other processes wait, and the kernel releases the lock if this
    process is killed.

    Raises FileNotFoundError if the file is missing and `create` is False.
    """
    with open(open_own(path, _SHARED if create else os.O_RDWR), "a+b" if create else "r+b") as file:
        _flock(file.fileno(), fcntl.LOCK_EX, path)
        yield


@contextlib.contextmanager
def locked_if_free(path: str | Path) -> Iterator[bool]:
    """Try to lock a file during the block, without waiting. Yield True if this process has the lock."""
    with open(open_own(path, _SHARED), "a+b") as file:
        try:
            _flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, path)
        except BlockingIOError:
            yield False
            return
        yield True


@contextlib.contextmanager
def locked_in_place(path: str | Path) -> Iterator[int]:
    """Hold the lock of the file that is now at `path`, even if the file is replaced while this process waits. Yield
    its descriptor.
    """
    while True:
        with open(open_own(path, _SHARED), "a+b") as file:
            _flock(file.fileno(), fcntl.LOCK_EX, path)
            if is_at(file.fileno(), path):
                yield file.fileno()
                return


def is_locked(path: str | Path) -> bool:
    """Return whether a process holds the kernel's lock of a file. Several processes may call this at once."""
    try:
        descriptor = open_own(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        _flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, path)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _flock(descriptor: int, how: int, path: str | Path) -> None:
    """Lock an open file as flock does. Raises OSError with the path if its file system has no locks."""
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise OSError(error.errno, "its file system has no file locks (flock)", str(path)) from error


def is_at(descriptor: int, path: str | Path) -> bool:
    """Return whether an open file is the file that is now at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False

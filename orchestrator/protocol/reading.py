"""Reads files that ranks, containers and other machines write.

A user or program that can write into a folder can replace a file by a link to a private file, a pipe without a writer,
a device, or gigabytes of data. So these functions accept ordinary files only, read a bounded number of bytes, and never
wait. They raise OSError for anything else.

The argument `below` is a folder that orch itself has made, usually the run's folder. No link below it is followed,
because each further part of the path is checked. Without `below`, only the last part of the path is checked.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Union

from orchestrator.protocol.json_text import parse_json

READABLE = 0o644
MOST_WORD = 1 << 20  # bytes of a message file from one process to another, such as cancel.json
MOST_RECORD = 64 << 20  # bytes of a record, such as plan.json
MOST_LINES = 256 << 20  # bytes of a file of lines, such as events.jsonl
_Path = Union[str, "Path"]
if sys.platform == "darwin":
    PASS = os.O_RDONLY
else:
    PASS = os.O_PATH  # to pass through a folder
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


_KINDS = {
    stat.S_IFLNK: (errno.ELOOP, "it is a link, which orch does not follow"),
    stat.S_IFDIR: (errno.EISDIR, os.strerror(errno.EISDIR)),
    stat.S_IFIFO: (errno.EINVAL, "it is a pipe, not an ordinary file"),
    stat.S_IFSOCK: (errno.EINVAL, "it is a socket, not an ordinary file"),
    stat.S_IFCHR: (errno.EINVAL, "it is a device, not an ordinary file"),
    stat.S_IFBLK: (errno.EINVAL, "it is a device, not an ordinary file"),
}


class NotOrdinaryError(OSError):
    """The path does not name an ordinary file, a part of the path is a link, or the file is larger than allowed."""


def descriptor_of(path: _Path, below: _Path | None = None) -> int:
    """Open an ordinary file and return its descriptor."""
    if below is None:
        return open_own(path, os.O_RDONLY)
    try:
        with _folder_of(os.fspath(path), os.fspath(below)) as (folder, name):
            return _opened_in(folder, name)
    except OSError as error:
        error.filename = os.fspath(path)
        raise


def _opened_in(folder: int, name: str) -> int:
    """Open an ordinary file in an open folder.

    The file is checked before it is opened, because opening a device or a pipe may have side effects. On Linux, a
    descriptor is checked, so it does not matter if another file gets the name meanwhile. macOS has no such descriptors:
    there, the file is checked a second time after it was opened.
    """
    if sys.platform == "darwin":
        _check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode, "")
        return open_own(name, os.O_RDONLY, folder=folder)
    seen = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        _check_regular(os.fstat(seen).st_mode, "")
        return os.open(f"/proc/self/fd/{seen}", os.O_RDONLY | _OPEN)
    finally:
        os.close(seen)


def open_own(path: _Path, flags: int, mode: int = READABLE, *, folder: int | None = None) -> int:
    """Open or create one of orch's own files in a trusted folder, and return its descriptor. Raises OSError if the path
    is a link, which could point to any file, or a pipe, which might have no reader. Only the last part of the path is
    checked. The path is relative to the open folder `folder`, if it is given.

    This takes half the time of checking the whole path, which matters because `orch status` opens thousands of files.
    """
    try:
        descriptor = os.open(path, flags | _OPEN | os.O_NOFOLLOW, mode, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # it is a link or a socket
            _check_regular(os.stat(path, dir_fd=folder, follow_symlinks=False).st_mode, path)
        raise
    try:
        _check_regular(os.fstat(descriptor).st_mode, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def opened(path: _Path, below: _Path | None = None) -> BinaryIO:
    """Open an ordinary file to be read piece by piece. The caller limits the size of each piece."""
    return open(descriptor_of(path, below), "rb")


def info_of(path: _Path, below: _Path | None = None) -> os.stat_result:
    """Return the stat result of an ordinary file without opening it."""
    if below is None:
        info = os.lstat(path)
    else:
        with _folder_of(os.fspath(path), os.fspath(below)) as (folder, name):
            info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    _check_regular(info.st_mode, path)
    return info


def read_regular(path: _Path, most: int, below: _Path | None = None) -> bytes:
    """Return the contents of an ordinary file. Raises OSError if the file is not ordinary or has more than `most`
    bytes.
    """
    try:
        return read_descriptor(descriptor_of(path, below), most)
    except OSError as error:
        error.filename = error.filename or os.fspath(path)
        raise


def read_each(folder: _Path, wanted: Callable[[str], bool], most: int, below: _Path) -> Iterator[tuple[str, bytes]]:
    """Yield (name, contents) of each wanted file in a folder. Entries that are not ordinary files are skipped.

    The path to the folder is checked only once, because a run may have a thousand heartbeat files.
    """
    with _folder_of(f"{os.fspath(folder)}/.", os.fspath(below)) as (at, _):
        listing = os.open(".", os.O_RDONLY | _FOLDER, dir_fd=at)
        try:
            names = os.listdir(listing)
        finally:
            os.close(listing)
        for name in filter(wanted, names):
            with contextlib.suppress(OSError):
                yield name, read_descriptor(_opened_in(at, name), most)


def read_descriptor(descriptor: int, most: int) -> bytes:
    """Return the contents of an open file, and close it. No buffered file object is made, because that would take
    longer than the reading.
    """
    try:
        size = os.fstat(descriptor).st_size
        data = os.read(descriptor, size + 1) if size <= most else b""
        # The file has grown, or a read returned only a part: the kernel returns less than 2 GiB at a time.
        while 0 < len(data) != size and len(data) <= most and (more := os.read(descriptor, most + 1 - len(data))):
            data += more
    finally:
        os.close(descriptor)
    if size > most or len(data) > most:
        raise NotOrdinaryError(errno.EFBIG, f"the file is larger than {_amount(most)}")
    return data


def read_part(path: _Path, offset: int, count: int, below: _Path | None = None) -> bytes:
    """Return up to `count` bytes, starting at an offset. A negative offset counts from the end."""
    with opened(path, below) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size + offset) if offset < 0 else offset)
        return file.read(count)


def read_json(path: _Path, most: int, below: _Path | None = None) -> Any:
    """Parse an ordinary file as JSON. Raises ValueError if it is not JSON."""
    return parse_json(read_regular(path, most, below))


def read_object(path: _Path, most: int, below: _Path | None = None) -> dict[str, Any] | None:
    """Return the JSON object in an ordinary file, or None if the file is missing, damaged or incomplete."""
    try:
        value = read_json(path, most, below)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


@contextlib.contextmanager
def _folder_of(path: str, top: str) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of the folder of a path, and the last part of the path. No link below `top` is followed."""
    if top == "." and not path.startswith("/"):
        path = f"./{path}"  # pathlib leaves out the dot
    names = [each for each in path[len(top) :].split("/") if each] if path.startswith(f"{top}/") else []
    if not names or ".." in names:
        raise OSError(errno.EINVAL, f"the path is not below {top}", path)
    at = os.open(top, PASS | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names[:-1]:
            below = entered(at, name, path)
            os.close(at)
            at = below
        yield at, names[-1]
    finally:
        os.close(at)


def entered(folder: int, name: str, path: str) -> int:
    """Open a folder in an open folder, to pass through it. Raises NotOrdinaryError, with `path`, if it is a link."""
    try:
        return os.open(name, PASS | _FOLDER, dir_fd=folder)
    except OSError as error:
        error.filename = path
        # A link is not a folder (ENOTDIR) on Linux, and a link (ELOOP) on macOS.
        if error.errno in (errno.ENOTDIR, errno.ELOOP) and stat.S_ISLNK(
            os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        ):
            why = "a folder in the path is a symbolic link, which orch does not follow"
            raise NotOrdinaryError(errno.ELOOP, why, path) from None
        raise


def _check_regular(mode: int, path: _Path) -> None:
    if stat.S_ISREG(mode):
        return
    number, words = _KINDS.get(stat.S_IFMT(mode), (errno.EINVAL, "it is no ordinary file"))
    raise NotOrdinaryError(number, words, os.fspath(path))


def _amount(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count} bytes"


def names_in(folder: str) -> list[str]:
    """Return the names in a folder, sorted; empty if the folder can't be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []

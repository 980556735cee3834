"""Writes files into folders that a user has named. This is the counterpart of the safe reader, `reading.py`.

Other users may be able to write into such a folder, and may have put a link or a folder of their own in the place of a
folder of the user. So each folder is opened once and stays open. The folders and files below it are opened relative to
the open folder, and no link is followed. Files are replaced atomically.

A folder must belong to this user. A file may also be written into another user's folder if the folder is sticky, or
writable for its group and not for everybody, because the file is then still this user's. In such a folder, orch makes
folders with mode 0700. A link on the path that the user has named is followed if it belongs to this user or to root.

The functions raise OSError. Its message says who owns the folder or link.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Union

from orchestrator.protocol import reading
from orchestrator.protocol.files import write_atomic
from orchestrator.protocol.reading import NotOrdinaryError, entered, open_own, read_descriptor

USERS = 0o666  # the mode of a file that the user has requested, before the umask applies
MOST_LINKS = 40
_Path = Union[str, "Path"]


class Folder:
    """An open folder into which this user may write. `path` names it in messages."""

    def __init__(self, descriptor: int, path: str, *, shared: bool = False) -> None:
        self.descriptor, self.path, self.shared = descriptor, path, shared

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def below(self, path: str, *, make: bool = True) -> Folder:
        """Open a folder below this one. Missing folders are made if `make` is True. No link is followed, and each
        folder must belong to this user, or be shared if this folder may be shared.
        """
        where = f"{self.path}/{path}".rstrip("/")
        at, _ = _walk(os.dup(self.descriptor), path, where, make=make, shared=self.shared, follows=False)
        return Folder(at, where, shared=self.shared)

    def names(self) -> list[str]:
        """Return the names in the folder."""
        listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.descriptor)
        try:
            return os.listdir(listing)
        finally:
            os.close(listing)

    def kind_of(self, name: str) -> int | None:
        """Return the type of an entry, as `stat.S_IFMT` does; None if it is missing."""
        with suppress(FileNotFoundError):
            return stat.S_IFMT(os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mode)
        return None

    def own_file(self, name: str, flags: int = os.O_RDONLY) -> int | None:
        """Open an ordinary file that this user has written, and that has only one hard link. Return None for anything
        else: another user may have put it there.
        """
        with suppress(FileNotFoundError, NotOrdinaryError, PermissionError):
            descriptor = open_own(name, flags, folder=self.descriptor)
            info = os.fstat(descriptor)
            if info.st_uid == os.geteuid() and info.st_nlink == 1:
                return descriptor
            os.close(descriptor)
        return None

    def read(self, name: str, most: int) -> bytes | None:
        """Return the contents of a file that this user has written, or None if it is not such a file."""
        descriptor = self.own_file(name)
        return None if descriptor is None else read_descriptor(descriptor, most)

    def write(self, name: str, data: bytes, *, mode: int = USERS) -> None:
        """Write a file atomically. It replaces a file or link of that name."""
        write_atomic(name, data, mode=mode, folder=self.descriptor)

    def remove(self, name: str) -> None:
        """Remove a file or link, if there is one."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def clear(self) -> None:
        """Remove the files in the folder."""
        for name in self.names():
            self.remove(name)


def named_folder(path: _Path, *, make: bool = True, shared: bool = False) -> Folder:
    """Open a folder that the user has named. It and its missing parents are made if `make` is True.

    With `shared`, it may be another user's folder that is sticky, or writable for its group only.
    """
    text = os.fspath(path)
    at, is_elsewhere = _walk(_start_of(text), text, text, make=make, shared=shared, follows=True)
    return Folder(at, os.path.realpath(text) if is_elsewhere else text, shared=shared)


@contextmanager
def named_file(path: _Path, *, make: bool = False) -> Iterator[tuple[Folder, str]]:
    """Yield the open folder and the name of a file that the user has named. If it is the user's own link, they are
    those of the link's target. With `make`, the missing folders are made.
    """
    text = os.fspath(path)
    for _ in range(MOST_LINKS):
        above, name = os.path.split(text)
        with named_folder(above or ".", make=make, shared=True) as folder:
            kind = folder.kind_of(name)
            if kind not in (None, stat.S_IFREG, stat.S_IFLNK):
                raise OSError(errno.EEXIST, "this is no ordinary file, and orch does not replace it", text)
            if kind != stat.S_IFLNK:
                yield folder, name
                return
            text = os.path.join(folder.path, _target_of(folder.descriptor, name, text))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))


def write_named(path: _Path, data: bytes, *, mode: int = USERS, make: bool = False) -> str:
    """Write a file that the user has named, atomically. Return its path, in which a link of the user is resolved."""
    with named_file(path, make=make) as (folder, name):
        folder.write(name, data, mode=mode)
        return os.path.normpath(os.path.join(folder.path, name))


def _walk(at: int, path: str, where: str, *, make: bool, shared: bool, follows: bool) -> tuple[int, bool]:
    """Open the folder `path` from the open folder `at`, which is closed. Return it, and whether a link was followed.

    With `follows`, the user has named the path: links of this user are followed, and only the last folder must belong
    to this user. Otherwise, each folder of the path must belong to this user.
    """
    names, followed = _parts(path), 0
    try:
        if ".." in names and not follows:
            raise OSError(errno.EINVAL, "the path leaves the folder", where)
        while names:
            name = names.pop(0)
            try:
                below = _enter(at, name, where, make=make)
            except NotOrdinaryError:
                if not follows or followed == MOST_LINKS:
                    raise
                followed += 1
                target = _target_of(at, name, where)
                names = [*_parts(target), *names]
                below = _start_of(target) if target.startswith("/") else os.dup(at)
            os.close(at)
            at = below
            if not follows:
                _check_owner(at, where, shared=shared)
        _check_owner(at, where, shared=shared)
    except BaseException:
        os.close(at)
        raise
    return at, followed > 0


def _parts(path: str) -> list[str]:
    return [each for each in path.split("/") if each not in ("", ".")]


def _start_of(path: str) -> int:
    return os.open("/" if path.startswith("/") else ".", reading.PASS | os.O_DIRECTORY | os.O_CLOEXEC)


def _enter(at: int, name: str, path: str, *, make: bool) -> int:
    """Open a folder in an open folder. It is made if it is missing and `make` is True."""
    try:
        return entered(at, name, path)
    except FileNotFoundError:
        if not make:
            raise
    _check_owner(at, os.path.dirname(path) or ".", shared=True)
    mode = 0o777 if os.fstat(at).st_uid == os.geteuid() else 0o700
    with suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=at)
    return entered(at, name, path)


def _target_of(at: int, name: str, path: str) -> str:
    """Return the target of a link of this user or of root. Raises OSError for a link of anybody else.

    On Linux the open link itself is read, so it does not matter if another link gets its name meanwhile.
    """
    if sys.platform == "darwin":
        owner, target = os.stat(name, dir_fd=at, follow_symlinks=False).st_uid, os.readlink(name, dir_fd=at)
    else:
        link = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        try:
            owner, target = os.fstat(link).st_uid, os.readlink("", dir_fd=link)
        finally:
            os.close(link)
    if owner not in (0, os.geteuid()):
        raise _of_another(owner, path, "link", "follows no link of another user")
    return target


def _check_owner(descriptor: int, path: str, *, shared: bool) -> None:
    """Raise OSError if an open folder belongs to another user, unless it may be shared, and is sticky or for a group
    only.
    """
    info = os.fstat(descriptor)
    is_shared = info.st_mode & stat.S_ISVTX or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH) == stat.S_IWGRP
    if info.st_uid != os.geteuid() and not (shared and is_shared):
        raise _of_another(info.st_uid, path, "folder", "writes only into your own folders")


def _of_another(uid: int, path: str, what: str, rule: str) -> OSError:
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"user {uid}"
    return PermissionError(errno.EPERM, f"the {what} belongs to {name}, and orch {rule}", path)

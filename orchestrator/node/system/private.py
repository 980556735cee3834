"""What no other user of a machine may read or write: folders, the umask, and who may put what in a folder's place."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Iterator

PRIVATE = 0o077
_UNCHANGED = -1  # as subprocess takes it
_users = _UNCHANGED


def hold_umask() -> None:
    """Make what this process writes from here on its user's alone; programs of the user get `users_umask` back."""
    global _users  # noqa: PLW0603 (a umask is the process's)
    former = os.umask(PRIVATE)
    if _users == _UNCHANGED:
        _users = former
    os.umask(former | PRIVATE)


def users_umask() -> int:
    """Return the umask that this process was started with, for `subprocess`; -1 where it was never changed."""
    return _users


def give_back_umask() -> None:
    """Take the umask that this process was started with: what follows is the user's own program."""
    if _users != _UNCHANGED:
        os.umask(_users)


def file_mode() -> int:
    """Return the mode of what another program that is started from here is to write for orch."""
    return 0o666 if _users == _UNCHANGED else 0o666 & ~PRIVATE


@contextlib.contextmanager
def as_orch() -> Iterator[None]:
    """Write a file of orch's for a while in a process that is the user's by now, where orch's are private at all."""
    held = os.umask(PRIVATE)
    os.umask(held if _users == _UNCHANGED else held | PRIVATE)
    try:
        yield
    finally:
        os.umask(held)


@contextlib.contextmanager
def as_the_user() -> Iterator[None]:
    """Write with the user's own umask for a while: files outside of orch's folders. Of all threads of the process."""
    held = os.umask(PRIVATE)
    os.umask(held if _users == _UNCHANGED else _users)
    try:
        yield
    finally:
        os.umask(held)


def make_private(path: str, *, exist_ok: bool = False) -> None:
    """Make a folder and those above it that are missing, each of mode 0700; OSError where one can't be made.

    `os.makedirs` would give its mode to the last of them only.
    """
    parent = os.path.dirname(path)
    if parent and not os.path.isdir(parent):
        make_private(parent, exist_ok=True)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not exist_ok or not os.path.isdir(path):
            raise


def why_exposed(path: str) -> str | None:
    """Return why others than this user may write into a folder; None where they may not, or where it is not there."""
    try:
        info = os.stat(path)
    except FileNotFoundError:
        return None
    if info.st_uid != os.geteuid():
        return f"{path} belongs to {_name(info.st_uid)}"
    mode = stat.S_IMODE(info.st_mode)
    return f"{path} may be written by others (mode {mode:04o})" if mode & 0o022 else None


def why_unsafe(path: str, *, shared_parent: bool = False) -> str | None:
    """Return why others may write into a folder, or put another in its place; None where they can't do either.

    Every folder above it, and every link on the way, has to be this user's or root's; one that others may write has to
    be sticky, as /tmp is. With `shared_parent` the folder alone counts: who shares those above it is trusted.
    """
    said = why_exposed(path)
    if said is not None or shared_parent:
        return said
    swap = f"who may put another folder in the place of {path}"
    for each in dict.fromkeys([path, *_above(path), *_above(os.path.realpath(path))]):
        try:
            info = os.lstat(each)
        except FileNotFoundError:
            continue
        if info.st_uid not in (0, os.geteuid()):
            return f"{each} belongs to {_name(info.st_uid)}, {swap}"
        mode = stat.S_IMODE(info.st_mode)
        if stat.S_ISDIR(info.st_mode) and mode & 0o022 and not mode & stat.S_ISVTX:
            return f"{each} may be written by others (mode {mode:04o}), {swap}"
    return None


def remedy(said: str) -> str:
    """Return what to do about a folder of which `why_unsafe` has said this."""
    if "in the place of" in said:
        return "have it made sticky, or set shared_parent: true in the profile if all who may write there are trusted"
    return "take that right from them: chmod go-w" if "may be written" in said else "set another workdir in the profile"


def _above(path: str) -> Iterator[str]:
    while (parent := os.path.dirname(path)) != path:
        yield parent
        path = parent


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"

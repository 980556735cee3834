"""Protection from other users: private folders, the umask, and checks on who could replace a folder."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Iterator

PRIVATE = 0o077
_UNCHANGED = -1  # subprocess's value for "unchanged"
_users = _UNCHANGED


def hold_umask() -> None:
    """Make files that this process writes from now on private; the user's programs get `users_umask` back."""
    global _users  # noqa: PLW0603 (a umask is the process's)
    former = os.umask(PRIVATE)
    if _users == _UNCHANGED:
        _users = former
    os.umask(former | PRIVATE)


def users_umask() -> int:
    """Return the umask with which this process was started, for `subprocess`, or -1 if it was never changed."""
    return _users


def give_back_umask() -> None:
    """Restore the umask with which this process was started, because the user's own program follows."""
    if _users != _UNCHANGED:
        os.umask(_users)


def file_mode() -> int:
    """Return the mode for files that another program, started from here, writes for orch."""
    return 0o666 if _users == _UNCHANGED else 0o666 & ~PRIVATE


@contextlib.contextmanager
def as_orch() -> Iterator[None]:
    """Within the block, write private files of orch in a process that otherwise has the user's umask."""
    held = os.umask(PRIVATE)
    os.umask(held if _users == _UNCHANGED else held | PRIVATE)
    try:
        yield
    finally:
        os.umask(held)


@contextlib.contextmanager
def as_the_user() -> Iterator[None]:
    """Within the block, write with the user's own umask, for files outside of orch's folders. Affects all threads."""
    held = os.umask(PRIVATE)
    os.umask(held if _users == _UNCHANGED else _users)
    try:
        yield
    finally:
        os.umask(held)


def make_private(path: str, *, exist_ok: bool = False) -> None:
    """Create a folder and its missing parents, each with mode 0700. Raises OSError if one can't be created.

    `os.makedirs` would apply the mode only to the last folder.
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
    """Return why other users may write into a folder, or None if they may not or the folder does not exist."""
    try:
        info = os.stat(path)
    except FileNotFoundError:
        return None
    if info.st_uid != os.geteuid():
        return f"{path} belongs to {_name(info.st_uid)}"
    mode = stat.S_IMODE(info.st_mode)
    return f"{path} may be written by others (mode {mode:04o})" if mode & 0o022 else None


def why_unsafe(path: str, *, shared_parent: bool = False) -> str | None:
    """Return why other users may write into a folder or replace it, or None if they can do neither.

    Every parent folder and every link on the path must belong to this user or root. A folder that others may write must
    be sticky, as /tmp is. With `shared_parent` only the folder itself is checked, because the users who share the
    folders above are trusted.
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
    """Return the remedy for a message of `why_unsafe`."""
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

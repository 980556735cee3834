"""Protects files from other users: creates private folders, sets the umask, and checks who could replace a folder."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Iterator
from typing import Callable

PRIVATE = 0o077
_UNCHANGED = -1  # the value by which `subprocess` leaves the umask unchanged
_users = _UNCHANGED


def hold_umask() -> None:
    """From now on, make all files that this process creates private. `users_umask` returns the umask from before."""
    global _users  # noqa: PLW0603 (a umask is the process's)
    former = os.umask(PRIVATE)
    if _users == _UNCHANGED:
        _users = former
    os.umask(former | PRIVATE)


def users_umask() -> int:
    """Return the umask with which this process was started, in the form that `subprocess` takes: -1 (keep the umask) if
    this process has not changed its umask.
    """
    return _users


def give_back_umask() -> None:
    """Restore the umask with which this process was started, before the user's own program runs in this process."""
    if _users != _UNCHANGED:
        os.umask(_users)


def file_mode() -> int:
    """Return the mode for orch's own files that the user's program writes in this process, such as an error file."""
    return 0o666 if _users == _UNCHANGED else 0o666 & ~PRIVATE


def as_orch() -> contextlib.AbstractContextManager[None]:
    """Make the files that are created within the block private. Outside of the block, this process uses the user's
    umask.
    """
    return _under(lambda held: held | PRIVATE)


def as_the_user() -> contextlib.AbstractContextManager[None]:
    """Use the user's own umask within the block, to create files outside of orch's folders. This affects all
    threads.
    """
    return _under(lambda _: _users)


@contextlib.contextmanager
def _under(umask_for: Callable[[int], int]) -> Iterator[None]:
    held = os.umask(PRIVATE)
    os.umask(held if _users == _UNCHANGED else umask_for(held))
    try:
        yield
    finally:
        os.umask(held)


def make_private(path: str, *, exist_ok: bool = False) -> None:
    """Create a folder and its missing parents, each with mode 0700. Raises OSError on failure.

    `os.makedirs` is not used, because it applies the mode only to the last folder.
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
    """Return why other users can write to a folder. Return None if they can't, or if the folder does not exist."""
    try:
        info = os.stat(path)
    except FileNotFoundError:
        return None
    if info.st_uid != os.geteuid():
        return f"{path} belongs to {user_in_words(info.st_uid)}"
    mode = stat.S_IMODE(info.st_mode)
    return f"{path} may be written by others (mode {mode:04o})" if mode & 0o022 else None


def why_unsafe(path: str, *, shared_parent: bool = False) -> str | None:
    """Return why other users can write to a folder or replace it, or None if they can do neither.

    Every parent folder and every link on the path must belong to this user or to root. If other users can write to a
    parent folder, it must be sticky, as /tmp is. With `shared_parent`, only the folder itself is checked, because the
    users who share its parent folders are trusted.
    """
    exposed = why_exposed(path)
    if exposed is not None or shared_parent:
        return exposed
    swap = f"who may put another folder in the place of {path}"
    for each in dict.fromkeys([path, *_above(path), *_above(os.path.realpath(path))]):
        try:
            info = os.lstat(each)
        except FileNotFoundError:
            continue
        if info.st_uid not in (0, os.geteuid()):
            return f"{each} belongs to {user_in_words(info.st_uid)}, {swap}"
        mode = stat.S_IMODE(info.st_mode)
        if stat.S_ISDIR(info.st_mode) and mode & 0o022 and not mode & stat.S_ISVTX:
            return f"{each} may be written by others (mode {mode:04o}), {swap}"
    return None


def remedy(unsafe: str) -> str:
    """Return a sentence that tells the user how to fix a problem that `why_unsafe` has returned."""
    if "in the place of" in unsafe:
        return (
            "set the folder's sticky bit (chmod +t), or set `shared_parent: true` in the profile if you trust "
            "all who may write there"
        )
    if "may be written" in unsafe:
        return "remove write permission for group and others: chmod go-w"
    return "set another `workdir` in the profile"


def _above(path: str) -> Iterator[str]:
    while (parent := os.path.dirname(path)) != path:
        yield parent
        path = parent


def user_name(uid: int | None) -> str | None:
    """Return the name of the user with this uid on this machine, or None if there is no such user."""
    with contextlib.suppress(KeyError, TypeError, OverflowError):
        return pwd.getpwuid(uid).pw_name  # type: ignore[arg-type]
    return None


def user_in_words(uid: int) -> str:
    """Return the name of the user with this uid, or `user 1234` if this machine knows no name for the uid."""
    return user_name(uid) or f"user {uid}"

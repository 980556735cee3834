"""Records and verifies the contents of an environment's folder, by the files' sizes and times. An installed environment
is either complete or absent.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from typing import Any

from orchestrator.node.system.hashing import digest_of
from orchestrator.protocol.files import write_json
from orchestrator.protocol.reading import MOST_RECORD, open_own, opened, read_json

MANIFEST = "orch-environment.json"
PASSED_OVER = ("__pycache__", MANIFEST)  # these are not verified, because the first import writes bytecode
# These files describe where and when a package was installed, and not its contents.
OF_THE_PLACE = ("pyvenv.cfg", "uv_cache.json", "RECORD")


class BrokenEnvironmentError(Exception):
    """An environment can't be used. The message names the environment and the reason."""


def interpreter(folder: str) -> str:
    """Return the path of an environment's interpreter."""
    return f"{folder}/bin/python"


def seal(folder: str, about: dict[str, Any]) -> None:
    """Record the state of all installed files in the environment's manifest, so that later changes can be detected."""
    write_json(f"{folder}/{MANIFEST}", {**about, "files": listing(folder)}, durable=False)


def listing(folder: str) -> dict[str, Any]:
    """Return a mapping from each path in the environment to the file's size and times, or to the link's target."""
    return {path: _stamp(entry) for path, entry in _walk(folder)}


def _walk(folder: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    folders = [""]
    while folders:
        inside = folders.pop()
        with os.scandir(f"{folder}/{inside}") as entries:
            for entry in entries:
                if entry.name in PASSED_OVER:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{inside}{entry.name}/")
                else:
                    yield inside + entry.name, entry


def _stamp(entry: os.DirEntry[str]) -> Any:
    if entry.is_symlink():
        return os.readlink(entry.path)
    info = entry.stat(follow_symlinks=False)
    return [info.st_size, info.st_mtime_ns, info.st_ctime_ns]


def why_unusable(folder: str) -> str | None:
    """Return a sentence about the problem if an environment was changed or is incomplete. Return None if it is intact,
    and "" if it is absent.

    Only sizes and times are compared. They include ctime, which no program can set.
    """
    try:
        files = read_json(f"{folder}/{MANIFEST}", MOST_RECORD)["files"]
        here = listing(folder)
    except FileNotFoundError:
        return f"{folder} was never finished" if os.path.isdir(folder) else ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{folder} can't be read: {error}"
    changed = sorted(path for path in {*files, *here} if files.get(path) != here.get(path))
    if not changed:
        return None
    more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
    return f"{folder} is not as it was installed: {changed[0]}{more}"


def content_hash(folder: str) -> str:
    """Return a sha256 of the installed files. It is equal on all machines that have the same packages."""
    whole = hashlib.sha256()
    for path, entry in sorted(_walk(folder), key=lambda each: each[0]):
        if entry.name in OF_THE_PLACE or entry.is_symlink() or not entry.is_file(follow_symlinks=False):
            continue
        with opened(entry.path) as file:
            whole.update(b"%s\0%s\0" % (os.fsencode(path), digest_of(file).encode()))
    return whole.hexdigest()


def hold(folder: str) -> int:
    """Lock an environment against removal. Return a descriptor, which holds the lock until it is closed.

    Raises BrokenEnvironmentError if the environment was changed or removed.
    """
    try:
        descriptor = open_own(f"{folder}/{MANIFEST}", os.O_RDONLY)
        # If the file system has no locks, only the time of its last use protects the environment.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.utime(descriptor)
    except OSError as error:
        raise BrokenEnvironmentError(
            f"the environment {folder} can't be used: {error.strerror}; submit the job again"
        ) from error
    why = why_unusable(folder)
    if why is not None:
        os.close(descriptor)
        raise BrokenEnvironmentError(f"the environment {why or f'{folder} was removed'}; submit the job again")
    return descriptor


@contextlib.contextmanager
def unused(folder: str) -> Iterator[bool]:
    """Yield True if no agent uses the environment, else False. If True is yielded, no agent can begin to use the
    environment within the `with` block.
    """
    try:
        descriptor = os.open(f"{folder}/{MANIFEST}", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield True  # the installation of this environment was never finished
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)

"""Finds and removes old environments, old wheels and interrupted installations."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from orchestrator.node.environments.folder import MANIFEST, unused
from orchestrator.node.environments.install import environments_folder, wheels_folder
from orchestrator.protocol.files import folder_size, locked_if_free, temporary_name
from orchestrator.protocol.reading import names_in


@dataclass(frozen=True)
class Old:
    """An item in a cache that has not been used recently."""

    kind: str  # environment, wheel, or folder (of an interrupted installation)
    path: str
    bytes: int


def find_old(cache: str, oldest: float, keep: Collection[str] = ()) -> Iterator[Old]:
    """Yield the items of a cache that were last used before `oldest`, except wheels whose sha256 is in `keep`."""
    top = environments_folder(cache)
    for name in names_in(top):
        path = f"{top}/{name}"
        if name.endswith(".tmp") and os.path.isdir(path):
            with locked_if_free(f"{top}/{name[1:].partition('.')[0]}.lock") as is_free:
                if is_free:
                    yield Old("folder", path, folder_size(path))
        elif os.path.isdir(path) and _used(path, MANIFEST) < oldest:
            yield Old("environment", path, folder_size(path))
    for name in names_in(wheels_folder(cache)):
        path = f"{wheels_folder(cache)}/{name}"
        if name not in keep and _used(path) < oldest:
            yield Old("wheel", path, os.lstat(path).st_size)


def remove(old: Old) -> bool:
    """Remove an item. Return False if a process has begun to use the item."""
    if old.kind == "wheel":
        with contextlib.suppress(FileNotFoundError):
            os.unlink(old.path)
        return True
    if old.kind == "folder":
        shutil.rmtree(old.path, ignore_errors=True)
        return True
    lock = f"{old.path}.lock"
    with locked_if_free(lock) as is_free, unused(old.path) as is_unused:
        if not (is_free and is_unused):
            return False
        aside = temporary_name(old.path)
        os.rename(old.path, aside)
        os.unlink(lock)
    shutil.rmtree(aside, ignore_errors=True)
    return True


def _used(path: str, name: str = "") -> float:
    """Return the time of an item's last use. For an unfinished environment, return the time at which its
    installation began.
    """
    for each in (os.path.join(path, name), path):
        with contextlib.suppress(OSError):
            return os.lstat(each).st_mtime
    return 0.0

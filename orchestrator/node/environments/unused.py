"""Environments and wheels that nothing has used for long, and builds that were cut off: found, and removed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from orchestrator.node.environments.folder import MANIFEST, unused
from orchestrator.node.environments.install import environments_folder, wheels_folder
from orchestrator.protocol.files import folder_size, locked_if_free, temporary_name


@dataclass(frozen=True)
class Old:
    """Something of a cache that nothing has used since a time: what it is, where, and its bytes."""

    kind: str  # environment | wheel | folder (a build that was cut off)
    path: str
    bytes: int


def find_old(cache: str, oldest: float, keep: Collection[str] = ()) -> Iterator[Old]:
    """Yield what was used last before `oldest`, but for the wheels to keep, by their sha256s."""
    top = environments_folder(cache)
    for name in _names(top):
        path = f"{top}/{name}"
        if name.endswith(".tmp") and os.path.isdir(path):
            with locked_if_free(f"{top}/{name[1:].partition('.')[0]}.lock") as is_free:
                if is_free:
                    yield Old("folder", path, folder_size(path))
        elif os.path.isdir(path) and _used(path, MANIFEST) < oldest:
            yield Old("environment", path, folder_size(path))
    for name in _names(wheels_folder(cache)):
        path = f"{wheels_folder(cache)}/{name}"
        if name not in keep and _used(path) < oldest:
            yield Old("wheel", path, os.lstat(path).st_size)


def remove(old: Old) -> bool:
    """Remove it; False where somebody has begun to use it, or does it already."""
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


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _used(path: str, name: str = "") -> float:
    """Return when it was used last; of an environment that was never finished, when it was begun."""
    for each in (os.path.join(path, name), path):
        with contextlib.suppress(OSError):
            return os.lstat(each).st_mtime
    return 0.0

"""Adds the code folder's ignored files to the code of a run on this machine, because a program that is started by hand
can read them too.

A script may overwrite a small file or a checkpoint, so the run gets a copy of such a file. Other files may be large, so
the run gets links to them, unless the file system supports reflinks. Folders are created and not linked, so that new
files in them belong to the run.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import UsageError
from orchestrator.node.system.copying import copy_file
from orchestrator.protocol.checkpoints.weight_files import names_weights
from orchestrator.runs.files.ignore_rules import DEFAULT_IGNORE

SMALL: Final = 1 << 20
# Files with these suffixes may contain weights or data. They are copied like weights, after all other files, and linked
# like data.
AMBIGUOUS: Final = (".bin", ".pkl", ".joblib", ".msgpack", ".zip")
MOST_IN_FOLDER: Final = 1000  # a folder with more entries is linked as a whole
_LINK: Final = 1 << 62  # added to the size of a link of the user, so that it is larger than any room
_NEVER: Final = frozenset(name.strip("/") for name in DEFAULT_IGNORE)


def lay(code_dir: Path, destination: Path, paths: Iterable[str], room: int) -> tuple[str, ...]:
    """Add these paths of `code_dir` to the copy in `destination`, and return the checkpoints that were linked and not
    copied.

    A folder's path ends with a slash. At most `room` bytes are copied, small files first. Links of the user remain
    links, except for links to checkpoints. Raises UsageError if the disk is full.
    """
    destination = destination.resolve()
    files = [file for path in paths for file in _laid_folder(code_dir, destination, path)]
    linked, clones = [], True
    try:
        for size, path in sorted(files, key=lambda file: (_may_be_data(*file), file)):
            source, target, is_weights = code_dir / path, destination / path, names_weights(os.path.basename(path))
            if size <= room and (size <= SMALL or is_weights):
                room -= size
                _copy(source, target)
                continue
            if size < _LINK and clones:
                clones = _copy(source, target, only_clone=True)
            if size >= _LINK or not clones:
                target.symlink_to(source)
                linked += [path] if is_weights and not _may_be_data(size, path) and not source.is_symlink() else []
    except OSError as error:
        raise _failed(destination, error) from error
    return tuple(linked)


def _may_be_data(size: int, path: str) -> bool:
    return size > SMALL and path.endswith(AMBIGUOUS)


def words_on_links(linked: Any) -> str:
    """Return one line for people about checkpoints that were linked because they are too large to copy; empty if
    there are none.
    """
    if not isinstance(linked, (list, tuple)) or not linked:
        return ""
    named = f"{', '.join(map(str, linked[:3]))}{f' and {len(linked) - 3} more' if len(linked) > 3 else ''}"
    return f"note: {named}: too large to be copied (code.max_size), so a run that writes to them changes your own files"


def _laid_folder(code_dir: Path, destination: Path, path: str) -> list[tuple[int, str]]:
    """Create the folders for a path, and return (size, path) of each file to add: the file at `path`, or all files
    below that folder.

    A folder with many entries is linked as a whole instead.
    """
    if not path.endswith("/"):
        return _file(code_dir, path)
    if _is_runs_folder(code_dir / path, destination):
        return []
    found, folders, entries = list[tuple[int, str]](), [path], 0
    for folder in folders:  # grows in the loop
        try:
            names = sorted(os.listdir(code_dir / folder))
        except OSError:  # a program run by hand can't read it either
            continue
        entries += len(names)
        if entries > MOST_IN_FOLDER or "pyvenv.cfg" in names:
            return _linked(code_dir, destination, path)
        for name in names:
            if name in _NEVER or name.endswith(".pyc") or _is_runs_folder(code_dir / folder / name, destination):
                continue
            place = f"{folder}{name}"
            if (code_dir / place).is_dir() and not (code_dir / place).is_symlink():
                folders.append(f"{place}/")
            else:
                found += _file(code_dir, place)
    try:
        for folder in folders:
            (destination / folder).mkdir(exist_ok=True)
    except OSError as error:
        raise _failed(destination, error) from error
    return found


def _is_runs_folder(folder: Path, destination: Path) -> bool:
    """Return whether this is the folder of orch's runs, which is left out because each run would get copies of all
    runs.
    """
    return destination.is_relative_to(folder) and destination.relative_to(folder).parts[:1] in (("runs",), ("sweeps",))


def _linked(code_dir: Path, destination: Path, path: str) -> list[tuple[int, str]]:
    try:
        (destination / path.rstrip("/")).symlink_to(code_dir / path.rstrip("/"))
    except OSError as error:
        raise _failed(destination, error) from error
    return []


def _file(code_dir: Path, path: str) -> list[tuple[int, str]]:
    """Return (size, path) of a file as a list, which is empty for a socket, a pipe or a device. Folders, and links to
    files that are no checkpoints, get a huge size, so that they are linked and not copied.
    """
    with contextlib.suppress(OSError):
        info = os.stat(code_dir / path)
        if stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode):
            large = stat.S_ISDIR(info.st_mode) or (os.path.islink(code_dir / path) and not names_weights(path))
            return [(info.st_size + (_LINK if large else 0), path)]
    return []


def _copy(source: Path, target: Path, *, only_clone: bool = False) -> bool:
    """Copy a file with its executable bit and modification time. An unreadable file is skipped.

    With `only_clone`, return False if the copy can't be a reflink.
    """
    if not os.access(source, os.R_OK):
        return True
    mode = 0o700 if source.stat().st_mode & stat.S_IXUSR else 0o600
    return copy_file(os.path.realpath(source), str(target), mode, only_clone=only_clone)


def _failed(destination: Path, error: OSError) -> UsageError:
    where = error.filename or destination
    return UsageError(
        f"{where}: an ignored file can't be copied into the run's folder: {error.strerror}", "make room on that disk"
    )

"""Checkpoints found in folders, in any of the formats of checkpoint_readers: which are whole, and which is the newest.

A job may say which format counts, and by a pattern where. Python 3.9, no torch.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from orchestrator.protocol.checkpoints.formats import (
    Format,
    format_of,
    is_whole_folder,
    metric_of,
    step_of_file,
    step_of_folder,
)
from orchestrator.protocol.checkpoints.weight_files import is_whole, names_weights
from orchestrator.protocol.outputs import Matcher, OutputRules

MAX_DEPTH = 5
MAX_ENTRIES = 50_000  # of a walk: a folder of a million samples must not hold a restart up
AUTO = "auto"

_CORE_DUMP = re.compile(r"core(\.\d+)?")
_NOT_SEARCHED = frozenset({"__pycache__", "data", "node_modules", "site-packages"})


@dataclass(frozen=True)
class Sought:
    """What a job says of its checkpoints: of which format, and a pattern as in .gitignore that their paths match."""

    format: str = AUTO
    glob: str = ""

    def takes(self, kind: Format) -> bool:
        """Tell whether a checkpoint of this format counts."""
        return self.format in (AUTO, kind)


@dataclass(frozen=True)
class Saved:
    """One whole checkpoint; its step is -1 where nothing tells it, its time its last file's, by the wall clock."""

    format: Format
    path: str
    step: int
    time: float

    @property
    def metric(self) -> dict[str, float]:
        """Return what a text file or its name tells of how good it is."""
        return metric_of(self.path, self.format)

    @property
    def is_counted(self) -> bool:
        """Tell whether its step is a framework's: a number in any other file's name may be a year."""
        return self.step >= 0 and self.format is not Format.FILES


@dataclass
class Found:
    """What a look at folders has found: the whole checkpoints, and when any file was written last (0.0: none was)."""

    saved: list[Saved] = field(default_factory=list)
    changed: float = 0.0


# -- which of them


def newest_first(found: Iterable[Saved]) -> list[Saved]:
    """Return them in order: the highest step of a framework's, else what was written last; what tells no step last."""
    return sorted(found, key=lambda each: (each.step if each.is_counted else -1, each.time, each.path), reverse=True)


def find_saved(
    folders: Iterable[str], since: float = 0.0, sought: Sought = Sought(), before: Mapping[str, list[int]] | None = None
) -> list[Saved]:
    """Return the whole checkpoints below these folders of which a file was written after `since`, in no order.

    `before` tells size and mtime_ns of files, by their whole paths, that were there before. A torn checkpoint is left
    out, and so is what can't be read; links are not followed.
    """
    return look(folders, since, sought, before).saved


def look(
    folders: Iterable[str], since: float = 0.0, sought: Sought = Sought(), before: Mapping[str, list[int]] | None = None
) -> Found:
    """Return what is below these folders, as `find_saved` does, and when a file was written last."""
    search = _Search(sought, since, before or {})
    for folder in folders:
        if folder:
            search.enter(folder)
    return Found(list(search.saved.values()), search.changed)


def at(path: str) -> Saved | None:
    """Return the checkpoint that a path itself is, or the newest below it; None where there is no whole one."""
    if os.path.isdir(path):
        return next(iter(newest_first(find_saved([path]))), None)
    with contextlib.suppress(OSError):
        info = os.stat(path)
        if stat.S_ISREG(info.st_mode) and info.st_size and is_whole(os.path.realpath(path)):  # the user may name a link
            return _of_file(path, info)
    return None


class _Search:
    """One look at several folders."""

    def __init__(self, sought: Sought, since: float, before: Mapping[str, list[int]]) -> None:
        self.sought, self.since, self.before = sought, since, before
        self.matcher = Matcher(OutputRules(include=(sought.glob,)), built_in=False) if sought.glob else None
        self.left = MAX_ENTRIES
        self.saved: dict[str, Saved] = {}
        self.changed = 0.0

    def enter(self, top: str) -> None:
        self.top = top.rstrip("/")
        self._search(self.top, MAX_DEPTH)

    def _search(self, folder: str, depth: int) -> None:
        files, folders = self._entries(folder)
        kind = self._kind(folder, files, folders)
        if kind is not None:
            self._add_folder(folder, kind, depth)
            return
        for name, info in files.items():
            self._add_file(f"{folder}/{name}", info)
        for name in folders if depth else ():
            if name not in _NOT_SEARCHED and not os.path.lexists(f"{folder}/{name}/pyvenv.cfg"):
                self._search(f"{folder}/{name}", depth - 1)

    def _kind(self, folder: str, files: Collection[str], folders: Collection[str]) -> Format | None:
        """Return as whose checkpoint a folder counts as a whole, also where it is torn; None where it is searched."""
        if self.sought.format == Format.FILES and self.sought.glob.endswith("/") and self._is_named(folder, True):
            return Format.FILES
        kind = format_of(folder, files, folders)
        return kind if kind is not None and self.sought.takes(kind) else None

    def _add_folder(self, folder: str, kind: Format, depth: int) -> None:
        files = self.tree(folder, depth)
        times = [info.st_mtime for name, info in files.items() if self._is_new(f"{folder}/{name}", info)]
        if not times or not self._is_named(folder, True):
            return
        sizes = {name: info.st_size for name, info in files.items()}
        if self.left >= 0 and is_whole_folder(folder, kind, sizes):
            self.saved[folder] = Saved(kind, folder, step_of_folder(folder, kind), max(times))
            self.changed = max(self.changed, *times)

    def _add_file(self, path: str, info: os.stat_result) -> None:
        name = os.path.basename(path)
        if not self._is_new(path, info):
            return
        named = self._is_named(path, False)
        # Of a format of its own, a job's glob names files of any suffix.
        of_weights = names_weights(name) or (self.sought.format == Format.FILES and self.matcher is not None)
        if not of_weights or name.startswith("."):
            if not _CORE_DUMP.fullmatch(name):
                self.changed = max(self.changed, info.st_mtime)
            return
        if info.st_size == 0 or not is_whole(path):
            return
        self.changed = max(self.changed, info.st_mtime)
        saved = _of_file(path, info, Format.FILES if self.sought.format == Format.FILES else None)
        if named and self.sought.takes(saved.format):
            self.saved[path] = saved

    def _is_new(self, path: str, info: os.stat_result) -> bool:
        return info.st_mtime > self.since and self.before.get(path) != [info.st_size, info.st_mtime_ns]

    def _is_named(self, path: str, is_folder: bool) -> bool:
        """Tell whether the job's pattern takes it, if there is one, by its path below the folder that is searched."""
        if self.matcher is None:
            return True
        below = path[len(self.top) + 1 :]
        return bool(below) and self.matcher.takes(f"{below}/." if is_folder else below)

    def tree(self, folder: str, depth: int) -> dict[str, os.stat_result]:
        """Return all files of a checkpoint's folder, hidden ones too."""
        files, folders = self._entries(folder)
        found = dict(files)
        for name in folders if depth else ():
            found.update((f"{name}/{path}", info) for path, info in self.tree(f"{folder}/{name}", depth - 1).items())
        return found

    def _entries(self, folder: str) -> tuple[dict[str, os.stat_result], list[str]]:
        """Return (the plain files with what stat says of them, the folders that can be read)."""
        files: dict[str, os.stat_result] = {}
        folders: list[str] = []
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                self.left -= 1
                if self.left < 0:
                    break
                with contextlib.suppress(OSError):
                    info = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(info.st_mode):
                        files[entry.name] = info
                    elif stat.S_ISDIR(info.st_mode) and entry.name[0] != "." and os.access(entry.path, os.R_OK):
                        folders.append(entry.name)
        return files, sorted(folders)


def _of_file(path: str, info: os.stat_result, kind: Format | None = None) -> Saved:
    """Return the checkpoint that one whole file is, of this format if one is given."""
    kind = kind or (Format.LIGHTNING if path.endswith(".ckpt") else Format.FILES)
    return Saved(kind, path, step_of_file(path, kind), info.st_mtime)


def files_of(saved: Saved) -> dict[str, int]:
    """Return the size of each of its files, by their paths below the folder that it lies in.

    To DeepSpeed's belongs `latest`, by which it is found again.
    """
    above, name = os.path.split(saved.path)
    if not os.path.isdir(saved.path):
        with contextlib.suppress(OSError):
            return {name: os.stat(saved.path).st_size}
        return {}
    tree = _Search(Sought(), 0.0, {}).tree(saved.path, MAX_DEPTH)
    found = {f"{name}/{path}": info.st_size for path, info in sorted(tree.items())}
    if saved.format is Format.DEEPSPEED:
        with contextlib.suppress(OSError):
            found["latest"] = os.stat(f"{above}/latest").st_size
    return found

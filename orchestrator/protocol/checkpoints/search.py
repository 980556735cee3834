"""Searches folders for checkpoints in any known format, decides which are complete, and finds the newest.

A job may restrict the format, and may restrict the paths by a pattern.
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
    tracker_of,
)
from orchestrator.protocol.checkpoints.weight_files import is_whole, names_weights
from orchestrator.protocol.outputs import Matcher, OutputRules

MAX_DEPTH = 5
MAX_ENTRIES = 50_000  # entries that one search visits, because a folder of a million samples must not delay a restart
AUTO = "auto"

_CORE_DUMP = re.compile(r"core(\.\d+)?")
_NOT_SEARCHED = frozenset({"__pycache__", "data", "node_modules", "site-packages"})


@dataclass(frozen=True)
class Sought:
    """A job's settings for checkpoints: the format, and a pattern as in .gitignore for their paths."""

    format: str = AUTO
    glob: str = ""

    def takes(self, kind: Format) -> bool:
        """Return whether the settings include checkpoints of this format."""
        return self.format in (AUTO, kind)


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint. `step` is -1 if unknown; `time` is the wall-clock time of the last write to its files."""

    format: Format
    path: str
    step: int
    time: float

    @property
    def metric(self) -> dict[str, float]:
        """Return the metrics in the checkpoint's text file or name."""
        return metric_of(self.path, self.format)

    @property
    def is_counted(self) -> bool:
        """Return whether `step` is reliable: a framework that orch knows must have written it. The number in any other
        name may be a year.
        """
        return self.step >= 0 and self.format is not Format.FILES


@dataclass
class Found:
    """The result of a search: the complete checkpoints, and the time of the last write to any new file (0.0 if there is
    no such file). Incomplete checkpoints and core dumps do not count.
    """

    saved: list[Saved] = field(default_factory=list)
    changed: float = 0.0


# -- which checkpoints


def newest_first(found: Iterable[Saved]) -> list[Saved]:
    """Sort by step, highest first, then by time. Checkpoints whose step is unknown come last."""
    return sorted(found, key=lambda each: (each.step if each.is_counted else -1, each.time, each.path), reverse=True)


def find_saved(
    folders: Iterable[str], since: float = 0.0, sought: Sought = Sought(), before: Mapping[str, list[int]] | None = None
) -> list[Saved]:
    """Return the complete checkpoints below these folders that have a new file, in any order.

    A file is new if it was written after `since` and differs from `before`, which maps the full path of each earlier
    file to (size, mtime_ns). Incomplete and unreadable checkpoints are left out, and links are not followed.
    """
    return look(folders, since, sought, before).saved


def look(
    folders: Iterable[str], since: float = 0.0, sought: Sought = Sought(), before: Mapping[str, list[int]] | None = None
) -> Found:
    """Return the checkpoints that `find_saved` returns, and the time of the last write to any new file, which need not
    be a checkpoint. Incomplete checkpoints and core dumps do not count.
    """
    search = _Search(sought, since, before or {})
    for folder in folders:
        if folder:
            search.enter(folder)
    return Found(list(search.saved.values()), search.changed)


def at(path: str) -> Saved | None:
    """Return the checkpoint at this path or, if the path is an ordinary folder, the newest checkpoint below it. Return
    None if there is no complete checkpoint.
    """
    if os.path.isdir(path):
        return next(iter(newest_first(find_saved([path]))), None)
    with contextlib.suppress(OSError):
        info = os.stat(path)
        if stat.S_ISREG(info.st_mode) and info.st_size and is_whole(os.path.realpath(path)):  # the path may be a link
            return _of_file(path, info)
    return None


class _Search:
    """One search of several folders."""

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
        """Return the format if a folder is one checkpoint, complete or not. Return None if checkpoints may be inside
        the folder.
        """
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
        # In format `files`, a job's glob may name files with any suffix.
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
        """Return whether the path below the searched folder matches the job's pattern. Return True if the job has no
        pattern.
        """
        if self.matcher is None:
            return True
        below = path[len(self.top) + 1 :]
        return bool(below) and self.matcher.takes(f"{below}/." if is_folder else below)

    def tree(self, folder: str, depth: int) -> dict[str, os.stat_result]:
        """Return all files in a checkpoint's folder, including hidden ones."""
        files, folders = self._entries(folder)
        found = dict(files)
        for name in folders if depth else ():
            found.update((f"{name}/{path}", info) for path, info in self.tree(f"{folder}/{name}", depth - 1).items())
        return found

    def _entries(self, folder: str) -> tuple[dict[str, os.stat_result], list[str]]:
        """Return (a dict from name to stat result of the plain files in a folder, the names of the readable folders in
        it).
        """
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
    """Return the checkpoint that consists of this one complete file. If `kind` is given, it is the checkpoint's
    format.
    """
    kind = kind or (Format.LIGHTNING if path.endswith(".ckpt") else Format.FILES)
    return Saved(kind, path, step_of_file(path, kind), info.st_mtime)


def files_of(saved: Saved) -> dict[str, int]:
    """Map each file of a checkpoint (its path relative to the folder that contains the checkpoint) to its size.

    For DeepSpeed and Megatron, the result includes the file that names the newest checkpoint and lies beside the
    checkpoint's folder. Neither framework finds the checkpoint without this file.
    """
    above, name = os.path.split(saved.path)
    if not os.path.isdir(saved.path):
        with contextlib.suppress(OSError):
            return {name: os.stat(saved.path).st_size}
        return {}
    tree = _Search(Sought(), 0.0, {}).tree(saved.path, MAX_DEPTH)
    found = {f"{name}/{path}": info.st_size for path, info in sorted(tree.items())}
    if tracker := tracker_of(saved.path, saved.format):
        with contextlib.suppress(OSError):
            found[tracker] = os.stat(f"{above}/{tracker}").st_size
    return found

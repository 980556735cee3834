"""Decides which files of a program are its run's outputs, and under which names they are copied back.

Excluded folders are not searched.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from orchestrator.protocol.patterns import MADE_AGAIN, compiled, problem_of, takes

MAX_SIZE = 10 << 30
# These patterns are excluded in addition to a job's own `exclude`. Programs often download data sets to `/data/`.
LEFT_OUT = (".git/", *MADE_AGAIN, ".cache/", ".hypothesis/", "/data/")
CODE, OUTPUTS, CHECKPOINTS = "code", "outputs", "checkpoints"  # the folders that are searched for outputs
# A script's `..` is the run's folder, and `../..` is the folder that holds the run's folder. A container sees other
# folders at both places.
BESIDE, ABOVE, IN_CONTAINER, ABOVE_IN_CONTAINER = "beside", "above", "beside_in_container", "above_in_container"
_FOLDERS_HERE = {
    OUTPUTS: "", CHECKPOINTS: f"{CHECKPOINTS}/", CODE: "", BESIDE: "beside/", IN_CONTAINER: "beside/",
    ABOVE: "above/", ABOVE_IN_CONTAINER: "above/",
}  # fmt: skip
ROOTS = frozenset(_FOLDERS_HERE)
ASIDE = "renamed"  # folder of files whose own path is already in use
# The patterns are compiled at their first use, because every command loads this module.
_RESERVED = re.compile(rf"(node_\d+|{ASIDE})(/|$)")
_CHECKPOINT = re.compile(r"(?s:checkpoint[-_.=]?\d.*|.*\.ckpt|epoch[-_=]?\d.*|(global[-_]?)?step[-_=]?\d.*)")


@dataclass(frozen=True)
class OutputRules:
    """A job's rules for outputs: which files of the working folder are outputs, and how many bytes are copied back
    by default.
    """

    include: tuple[str, ...] = ()  # patterns; empty: all files
    exclude: tuple[str, ...] = ()
    max_size: int = MAX_SIZE

    def to_json(self) -> dict[str, Any]:
        """Return the rules as JSON types."""
        return {"include": list(self.include), "exclude": list(self.exclude), "max_size": self.max_size}

    @staticmethod
    def from_json(data: Any) -> OutputRules:
        """Parse the rules from the result of `to_json` or from a job's document. Damaged fields get their defaults."""
        if not isinstance(data, Mapping):
            return OutputRules()
        size = data.get("max_size")
        include, exclude = (_patterns(data.get(name)) for name in ("include", "exclude"))
        return OutputRules(include, exclude, size if type(size) is int and size > 0 else MAX_SIZE)


def _patterns(value: Any) -> tuple[str, ...]:
    found = value if isinstance(value, (list, tuple)) else ()
    return tuple(each for each in found if isinstance(each, str) and problem_of(each) is None)


class Entry(NamedTuple):
    """A file: its folder, its path within the folder, and the values that show whether it has changed."""

    root: str
    path: str
    size: int
    mtime_ns: int
    executable: bool = False


class Matcher:
    """Decides whether paths of a folder are outputs. With `built_in`, the patterns LEFT_OUT are excluded too."""

    def __init__(self, rules: OutputRules, *, built_in: bool = True) -> None:
        self.include = [compiled(each) for each in rules.include]
        self.exclude = [compiled(each) for each in (*(LEFT_OUT if built_in else ()), *rules.exclude)]

    def enters(self, folder: str) -> bool:
        """Return whether a folder may contain outputs. The caller must have checked all its parent folders."""
        return not takes(self.exclude, folder, is_folder=True)

    def takes(self, path: str) -> bool:
        """Return whether a file is an output. The caller must have checked all its parent folders."""
        if takes(self.exclude, path, is_folder=False):
            return False
        if not self.include:
            return True
        named = any(takes(self.include, each, is_folder=True) for each in _above(path))
        return named or takes(self.include, path, is_folder=False)


# -- names of copied files


def home_names(entries: Iterable[Entry], node: int = 0) -> dict[str, Entry]:
    """Return a dict from path to file, with the path that each file gets in the run's local outputs folder. Each node
    other than 0 has a subfolder.

    A file of $ORCH_OUTPUT_DIR keeps its path. If a file of another folder has the same path, it goes to a folder of
    renamed files.
    """
    order = list(_FOLDERS_HERE)
    ordered = sorted(entries, key=lambda entry: (order.index(entry.root), entry.path))
    found: dict[str, Entry] = {}
    folders: set[str] = set()
    for entry in ordered:
        name = f"{_FOLDERS_HERE[entry.root]}{entry.path}"
        above = _above(name)
        if name in found or name in folders or not found.keys().isdisjoint(above) or _RESERVED.match(name):
            name = f"{ASIDE}/{entry.root}/{entry.path}"
            above = _above(name)
        found[name] = entry
        folders.update(above)
    return {f"node_{node}/{name}": entry for name, entry in found.items()} if node else found


def _above(path: str) -> tuple[str, ...]:
    return _with_above(path.rpartition("/")[0])


@functools.lru_cache(maxsize=1024)  # many files are in one folder
def _with_above(folder: str) -> tuple[str, ...]:
    return tuple(itertools.accumulate(folder.split("/"), "{}/{}".format)) if folder else ()


def leads_out(name: str) -> bool:
    """Return whether a path from another machine would lead out of the local folder. Return True unless it is a
    plain relative path.
    """
    return "\0" in name or any(part in ("", ".", "..") for part in name.split("/"))


def chosen(files: Mapping[str, Entry], max_size: int) -> set[str]:
    """Return the files to copy back. If not all fit into `max_size` bytes, the newest checkpoint is preferred, then the
    smallest files.
    """
    if sum(entry.size for entry in files.values()) <= max_size:
        return set(files)
    newest: dict[str, int] = {}
    for name, entry in files.items():
        folder = checkpoint_of(name)
        if folder is not None:
            newest[folder] = max(newest.get(folder, 0), entry.mtime_ns)
    first = max(newest, key=lambda folder: (newest[folder], folder), default=None)
    in_order = sorted(files, key=lambda name: (checkpoint_of(name) != first or first is None, files[name].size, name))
    room, found = max_size, set()
    for name in in_order:
        if files[name].size <= room:
            room -= files[name].size
            found.add(name)
    return found


def checkpoint_of(path: str) -> str | None:
    """Return the checkpoint file or folder that contains a path, or None. Only the names in the path decide."""
    for above in (*_above(path), path):
        if _CHECKPOINT.fullmatch(above.rpartition("/")[2]):
            return above
    return None

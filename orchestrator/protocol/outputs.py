"""Decides which files of a program are its run's outputs, and their names when they are copied back. Python 3.9, pure.

Patterns are those of .gitignore. A pattern without a slash matches a name in any folder, and a pattern with a slash
matches a path from the top. A slash at the end matches only folders, and `**` any folders. The last matching pattern
counts, and `!` at its start includes a file again. An excluded folder is not searched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

MAX_SIZE = 10 << 30
# Excluded before a job's own `exclude`, because tools create these again. Data sets are downloaded to `/data/`.
LEFT_OUT = (
    ".git/", "__pycache__/", "*.pyc", ".cache/", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/", ".hypothesis/",
    ".ipynb_checkpoints/", ".venv/", "venv/", "node_modules/", "/data/",
)  # fmt: skip
CODE, OUTPUTS, CHECKPOINTS = "code", "outputs", "checkpoints"  # the folders that are searched for outputs
# A script's `..` is the run's folder, and `../..` is the folder that holds the run's folder. A container sees other
# folders at both places. The points of a sweep share one working folder, and therefore one `..`.
BESIDE, ABOVE, IN_CONTAINER, ABOVE_IN_CONTAINER, BESIDE_ALL = (
    "beside", "above", "beside_in_container", "above_in_container", "beside_all_points"
)  # fmt: skip
_FOLDERS_HERE = {
    OUTPUTS: "", CHECKPOINTS: f"{CHECKPOINTS}/", CODE: "", BESIDE: "beside/", IN_CONTAINER: "beside/",
    BESIDE_ALL: "beside/", ABOVE: "above/", ABOVE_IN_CONTAINER: "above/",
}  # fmt: skip
ROOTS = frozenset(_FOLDERS_HERE)
ASIDE = "renamed"  # folder of files whose own name is taken
# Compiled at the first use, because every command loads this module.
_RESERVED = rf"(node_\d+|{ASIDE})(/|$)"
_CHECKPOINT = r"(?s:checkpoint[-_.=]?\d.*|.*\.ckpt|epoch[-_=]?\d.*|(global[-_]?)?step[-_=]?\d.*)"


@dataclass(frozen=True)
class OutputRules:
    """A job's rules for outputs: the files of the working folder, and how many bytes are copied back by default."""

    include: tuple[str, ...] = ()  # empty: all
    exclude: tuple[str, ...] = ()
    max_size: int = MAX_SIZE

    def to_json(self) -> dict[str, Any]:
        """Return the rules as JSON types."""
        return {"include": list(self.include), "exclude": list(self.exclude), "max_size": self.max_size}

    @staticmethod
    def from_json(data: Any) -> OutputRules:
        """Return the rules that `to_json` or a job's document wrote. Damaged fields get their defaults."""
        if not isinstance(data, Mapping):
            return OutputRules()
        size = data.get("max_size")
        include, exclude = (_patterns(data.get(name)) for name in ("include", "exclude"))
        return OutputRules(include, exclude, size if type(size) is int and size > 0 else MAX_SIZE)


def _patterns(value: Any) -> tuple[str, ...]:
    found = value if isinstance(value, (list, tuple)) else ()
    return tuple(each for each in found if isinstance(each, str) and problem_of(each) is None)


class Entry(NamedTuple):
    """A file: its folder, its path there, and what shows whether it has changed."""

    root: str
    path: str
    size: int
    mtime_ns: int
    executable: bool = False


# -- patterns


class _Pattern(NamedTuple):
    regex: re.Pattern[str]
    only_folders: bool
    lifts: bool


def problem_of(pattern: str) -> str | None:
    """Return what is wrong with a pattern, or None if it is valid."""
    if not pattern.strip("!/ "):
        return "names nothing"
    try:
        _compiled(pattern)
    except re.error as error:
        return f"can't be read: {error}"
    return None


def _compiled(pattern: str) -> _Pattern:
    lifts = pattern.startswith("!")
    body = pattern[1:] if lifts else pattern
    only_folders = body.endswith("/")
    body = body.rstrip("/") if only_folders else body
    at_top = "/" in body
    parts = body.lstrip("/").split("/")
    text = "" if at_top else "(?:.*/)?"
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        if part == "**":
            text += ".+" if is_last else "(?:.*/)?"
        else:
            text += _name(part) + ("" if is_last else "/")
    return _Pattern(re.compile(text, re.DOTALL), only_folders, lifts)


def _name(part: str) -> str:
    """Return the regular expression for a pattern within one name."""
    text, at = "", 0
    while at < len(part):
        char, at = part[at], at + 1
        end = part.find("]", at + 1 + (part[at : at + 1] in ("!", "^"))) if char == "[" else -1
        if char == "*":
            text += "[^/]*"
        elif char == "?":
            text += "[^/]"
        elif end > 0:
            inside, at = part[at:end], end + 1
            negated = inside[:1] in ("!", "^")
            inside = inside[1:] if negated else inside
            text += f"(?!/)[{'^' if negated else ''}{_escaped(inside)}]"
        elif char == "\\" and at < len(part):
            text, at = text + re.escape(part[at]), at + 1
        else:
            text += re.escape(char)
    return text


def _escaped(inside: str) -> str:
    return "".join(f"\\{char}" if char in "\\[]^&~|" else char for char in inside)


class Matcher:
    """Tells whether paths of a folder are outputs. With `built_in`, LEFT_OUT is excluded too."""

    def __init__(self, rules: OutputRules, *, built_in: bool = True) -> None:
        self.include = [_compiled(each) for each in rules.include]
        self.exclude = [_compiled(each) for each in (*(LEFT_OUT if built_in else ()), *rules.exclude)]

    def enters(self, folder: str) -> bool:
        """Tell whether a folder may contain outputs. All folders above it must have been entered."""
        return not _last(self.exclude, folder, is_folder=True)

    def takes(self, path: str) -> bool:
        """Tell whether a file is an output. All folders above it must have been entered."""
        if _last(self.exclude, path, is_folder=False):
            return False
        if not self.include:
            return True
        above = [path[:at] for at, char in enumerate(path) if char == "/"]
        named = any(_last(self.include, each, is_folder=True) for each in above)
        return named or _last(self.include, path, is_folder=False)


def _last(patterns: Sequence[_Pattern], path: str, *, is_folder: bool) -> bool:
    """Tell whether the last matching pattern includes the path; False if none matches."""
    for each in reversed(patterns):
        if (is_folder or not each.only_folders) and each.regex.fullmatch(path):
            return not each.lifts
    return False


# -- names of copied files


def home_names(entries: Iterable[Entry], node: int = 0) -> dict[str, Entry]:
    """Return each file by its path in the run's local outputs folder; nodes other than 0 have a folder of their own.

    A file of $ORCH_OUTPUT_DIR keeps its path. Another file with the same path goes to a folder of renamed files.
    """
    order = list(_FOLDERS_HERE)
    ordered = sorted(entries, key=lambda entry: (order.index(entry.root), entry.path))
    found: dict[str, Entry] = {}
    folders: set[str] = set()
    for entry in ordered:
        name = f"{_FOLDERS_HERE[entry.root]}{entry.path}"
        is_taken = name in found or name in folders or any(above in found for above in _above(name))
        if is_taken or re.match(_RESERVED, name):
            name = f"{ASIDE}/{entry.root}/{entry.path}"
        found[name] = entry
        folders.update(_above(name))
    return {f"node_{node}/{name}": entry for name, entry in found.items()} if node else found


def _above(path: str) -> list[str]:
    return [path[:at] for at, char in enumerate(path) if char == "/"]


def leads_out(name: str) -> bool:
    """Tell whether a path from another machine is not a plain path below a folder here."""
    return "\0" in name or any(part in ("", ".", "..") for part in name.split("/"))


def chosen(files: Mapping[str, Entry], max_size: int) -> set[str]:
    """Return the files to copy back if not all fit: the newest checkpoint first, then the smallest files."""
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
    """Return the checkpoint file or folder that contains a path, judged by names, or None."""
    for above in (*_above(path), path):
        if re.fullmatch(_CHECKPOINT, above.rpartition("/")[2]):
            return above
    return None

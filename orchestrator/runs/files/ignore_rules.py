"""Decides which files are left out of the copy of a code folder, and which line of an ignore file excludes each of
them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import UsageError, printable
from orchestrator.protocol.patterns import MADE_AGAIN, Pattern, compiled, deciding, problem_of, takes
from orchestrator.protocol.quantities import size

DEFAULT_IGNORE: Final = (".git", *MADE_AGAIN)
MOST_MEASURED: Final = 20_000  # files whose sizes are summed; a data set may have millions
LARGEST: Final = 3


@dataclass(frozen=True)
class Rules:
    """Ignore patterns, in this order: built-in patterns, .gitignore, the job's ignore file. The last pattern that
    matches decides.
    """

    lines: tuple[tuple[str, str], ...]  # the patterns of the files, with `FILE:LINE` for each
    patterns: tuple[Pattern, ...]  # the compiled built-in patterns, and one compiled pattern per line

    @staticmethod
    def of(code_dir: Path, ignore_file: str) -> Rules:
        """Return the rules of a code folder. Raises UsageError if an ignore file can't be used."""
        chosen = code_dir / ignore_file
        if ignore_file != ".orchignore" and not chosen.is_file():
            raise UsageError(
                f"{chosen}: there is no such ignore file", "create it, or remove `code.ignore` from the job"
            )
        files = [each for each in dict.fromkeys((code_dir / ".gitignore", chosen)) if each.is_file()]
        lines = tuple(line for file in files for line in _lines_of(file))
        if wrong := [f"{place} ({line})" for place, line in lines if problem_of(line)]:
            said = f"{code_dir}: lines that are no patterns of git's: {', '.join(wrong)}"
            raise UsageError(said, "change or remove these lines")
        return Rules(lines, tuple(map(compiled, (*DEFAULT_IGNORE, *(line for _, line in lines)))))

    def ignores(self, path: str) -> bool:
        """Return whether a path is left out. Its parent folders must have been checked. A folder's path ends with a
        slash.
        """
        return takes(self.patterns, path.rstrip("/"), is_folder=path.endswith("/"))

    def line_of(self, path: str) -> tuple[str, str] | None:
        """Return (`FILE:LINE`, text) of the ignore file's line that excludes a path. Return None if no line
        excludes it.
        """
        index = deciding(self.patterns, path.rstrip("/"), is_folder=path.endswith("/"))
        return None if index is None or index < len(DEFAULT_IGNORE) else self.lines[index - len(DEFAULT_IGNORE)]

    def is_left_out_by_line(self, path: str) -> bool:
        """Return whether a line of an ignore file excludes a path or a folder above it. Return False if a built-in
        pattern excludes the path in any case.
        """
        built_in = Rules((), self.patterns[: len(DEFAULT_IGNORE)])
        return not built_in.why_left_out(path) and bool(self.why_left_out(path))

    def why_left_out(self, path: str) -> str:
        """Return the `FILE:LINE` (or the built-in pattern) that excludes a path or a folder above it; empty if
        nothing excludes it.
        """
        _, why = self.ignored_part(path)
        return why

    def ignored_part(self, path: str) -> tuple[str, str]:
        """Return (the excluded path or folder above it, the rule that excludes it). Both are empty if no rule
        matches.
        """
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            above = "/".join(parts[:end]) + ("/" if end < len(parts) else "")
            if self.ignores(above):
                line = self.line_of(above)
                return above, f"{line[0]} ({line[1].strip()})" if line else "orch's built-in patterns"
        return "", ""


def _lines_of(file: Path) -> list[tuple[str, str]]:
    """Return `FILE:LINE` and the text of each pattern of an ignore file. Raises UsageError if it can't be read."""
    try:
        text = file.read_text("utf-8", "surrogateescape")
    except OSError as error:
        raise unreadable(file, error) from None
    lines = [(f"{file.name}:{number}", _trimmed(line)) for number, line in enumerate(text.splitlines(), 1)]
    return [(place, line) for place, line in lines if line.strip("/") and not line.startswith("#")]


def _trimmed(line: str) -> str:
    """Remove the spaces at the end of a line. A space after a backslash is kept."""
    kept = line.rstrip(" \t")
    return f"{kept} " if kept.endswith("\\") and kept != line else kept


def unreadable(path: Path, error: OSError) -> UsageError:
    """Return the error for a file of the code folder that can't be read."""
    return UsageError(f"{path} can't be read: {error.strerror}", "make it readable, or leave it out in .orchignore")


# -- how much is left out


@dataclass(frozen=True)
class LeftOut:
    """The sizes of everything that ignore files exclude. `largest` has [path, bytes, rule] of the largest paths."""

    files: int = 0
    bytes: int = 0
    is_more: bool = False  # whether the count stopped at MOST_MEASURED
    largest: list[tuple[str, int, str]] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)  # [path, target] of links to folders that are not sent
    copied: list[tuple[str, str]] = field(default_factory=list)  # [path, target] of links to files outside, as copies


def measure_left_out(top: Path, paths: Sequence[str], rules: Rules, sent: Collection[str] = ()) -> LeftOut:
    """Return the sizes of these excluded paths. Files in `sent` are not counted, because they are copied anyway. A
    folder's path ends with a slash.
    """
    room, total, is_more = MOST_MEASURED, 0, False
    found: list[tuple[str, int, str]] = []
    for path in paths:
        files = size = 0
        for file, info in _files_of(top, path):
            if file in sent:
                continue
            if files == room:
                is_more = True
                break
            files, size = files + 1, size + info.st_size
        room, total = room - files, total + size
        if files:
            found.append((path, size, rules.why_left_out(f"{path}x" if path.endswith("/") else path)))
    largest = sorted(found, key=lambda each: (-each[1], each[0]))[:LARGEST]
    return LeftOut(MOST_MEASURED - room, total, is_more, largest, _unmatched_links(top, paths, rules))


def _unmatched_links(top: Path, paths: Sequence[str], rules: Rules) -> list[tuple[str, str]]:
    """Return [path, target] of each path that is a link to a folder and that no line of an ignore file excludes."""
    links = [path for path in paths if not path.endswith("/") and os.path.isdir(top / path)]
    return [(path, os.path.realpath(top / path)) for path in links if not rules.why_left_out(f"{path}/x")]


def _files_of(top: Path, path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield (path, stat result) of a file, or of each file below a folder. Unreadable files are skipped."""
    folders = [path] if path.endswith("/") else []
    if not folders:
        yield from _facts(top, path)
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(top / folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(f"{folder}{entry.name}/")
                    else:
                        yield from _facts(top, f"{folder}{entry.name}")
        except OSError:
            continue


def _facts(top: Path, path: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        info = os.lstat(top / path)
    except OSError:
        return
    if stat.S_ISREG(info.st_mode):
        yield path, info


def left_out_words(found: Any) -> str:
    """Return a text for people about the files and links that a copy of the code excluded; empty if there are none.
    `found` is the record of the copy.
    """
    if not isinstance(found, dict):
        return ""
    advice = "; give the script a path that exists on the nodes"
    parts = [
        _words_on_files(found),
        _words_on_links(found.get("links"), "links to folders are not sent", advice),
        _words_on_links(found.get("copied"), "links lead out of the code folder, and their files are copied"),
    ]
    return "\n".join(printable(part, keep="") for part in parts if part)


def _words_on_files(found: dict[str, Any]) -> str:
    if not found.get("files"):
        return ""
    count, total = found["files"], found["bytes"]
    counted = f"{'more than ' if found.get('is_more') else ''}{count} file{'s' * (count != 1)} ({size(total)})"
    listed = "; ".join(f"{path} ({size(each)}) by {rule}" for path, each, rule in found["largest"])
    return f"note: {counted} of the code folder {'is' if count == 1 else 'are'} not sent: {listed}"


def _words_on_links(links: Sequence[tuple[str, str]] | None, what: str, hint: str = "") -> str:
    listed = ", ".join(f"{path} (to {target})" for path, target in links or ())
    return f"note: {what}: {listed}{hint}" if links else ""


def named_files(code_dir: Path, words: Sequence[str]) -> tuple[str, ...]:
    """Return the files of the code folder that a command line names, as `FILE` or as `--option=FILE`."""
    found = []
    for word in words:
        for text in dict.fromkeys((word, word.partition("=")[2])):
            place = os.path.normpath(code_dir / text)
            if place.startswith(f"{code_dir}/") and os.path.isfile(place) and not os.path.islink(place):
                found.append(os.path.relpath(place, code_dir))
    return tuple(dict.fromkeys(found))

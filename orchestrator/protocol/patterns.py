"""Patterns in the syntax of .gitignore, for ignore files, outputs and checkpoints.

A pattern without a slash matches a name in any folder, and a pattern with a slash matches a path from the top. A
pattern that ends in a slash matches only folders. `**` matches any number of folders. The last matching pattern
decides, and a pattern that starts with `!` cancels earlier matches. Callers don't test paths below an excluded folder,
so a pattern is never compared with the parents of a path.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

# Tools create these files again, so they are neither sent with the code nor copied back as outputs.
MADE_AGAIN = (
    "__pycache__/", "*.pyc", ".venv/", "venv/", "node_modules/", ".mypy_cache/", ".ruff_cache/", ".pytest_cache/",
    ".ipynb_checkpoints/", ".DS_Store", "._*",
)  # fmt: skip


class Pattern(NamedTuple):
    """A pattern, compiled to a regular expression for a whole path."""

    regex: re.Pattern[str]
    only_folders: bool
    lifts: bool


def problem_of(pattern: str) -> str | None:
    """Return what is wrong with a pattern, or None if it is valid."""
    if not pattern.strip("!/ "):
        return "names nothing"
    try:
        compiled(pattern)
    except re.error as error:
        return f"can't be read: {error}"
    return None


def compiled(pattern: str) -> Pattern:
    """Compile a pattern. Raises re.error if the pattern is not valid."""
    lifts = pattern.startswith("!")
    body = pattern[1:] if lifts else pattern
    only_folders = body.endswith("/")
    body = body.rstrip("/") if only_folders else body
    text = "" if "/" in body else "(?:.*/)?"
    *folders, last = body.lstrip("/").split("/")
    for part in folders:
        text += "(?:.*/)?" if _is_any(part) else f"{_name(part)}/"
    text += ".+" if _is_any(last) else _name(last)
    return Pattern(re.compile(text, re.DOTALL), only_folders, lifts)


def _is_any(part: str) -> bool:
    return len(part) > 1 and not part.strip("*")


def _name(part: str) -> str:
    """Return the regular expression for one name of a pattern's path."""
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
        elif char != "\\":
            text += re.escape(char)
        elif at < len(part):
            text, at = text + re.escape(part[at]), at + 1
        else:
            raise re.error("it ends with a backslash")
    return text


def _escaped(inside: str) -> str:
    return "".join(f"\\{char}" if char in "\\[]^&~|" else char for char in inside)


def deciding(patterns: Sequence[Pattern], path: str, *, is_folder: bool) -> int | None:
    """Return the index of the last pattern that matches the path, or None."""
    for index in range(len(patterns) - 1, -1, -1):
        each = patterns[index]
        if (is_folder or not each.only_folders) and each.regex.fullmatch(path):
            return index
    return None


def takes(patterns: Sequence[Pattern], path: str, *, is_folder: bool) -> bool:
    """Return whether the last matching pattern includes the path. Return False if no pattern matches."""
    index = deciding(patterns, path, is_folder=is_folder)
    return index is not None and not patterns[index].lifts

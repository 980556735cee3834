"""Text of programs, hosts and users, so that a terminal shows it and obeys none of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from orchestrator.errors import printable

_OUR_COLOURS = re.compile(r"\x1b\[(?:3[0-7]|0)m")  # what cli.group.style writes, and nothing else
_SGR = re.compile(r"\x1b\[[0-9;:]*m")
_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")  # CSI, and OSC to its end


def page(text: str) -> str:
    """A page of several lines: control characters as their escapes, but for the colours that orch itself gives."""
    return _outside(_OUR_COLOURS, text, printable)


def one_line(text: str) -> str:
    """A cell or a value on a line of its own: control characters as their escapes, line ends and tabs too."""
    return printable(text, keep="")


def log_line(text: str) -> str:
    """A line of a log: its colours stay and end with it, other sequences go, and control characters are escapes."""
    shown = _outside(_SGR, text, lambda part: printable(_SEQUENCES.sub("", part)))
    return f"{shown}\x1b[0m" if "\x1b" in shown and not shown.endswith("\x1b[0m") else shown


def plain(text: str) -> str:
    """The same without its colours, for what has no room for them."""
    return printable(_SEQUENCES.sub("", text), keep="")


def _outside(kept: re.Pattern[str], text: str, change: Callable[[str], str]) -> str:
    pieces, end = [], 0
    for match in kept.finditer(text):
        pieces += [change(text[end : match.start()]), match[0]]
        end = match.end()
    return "".join([*pieces, change(text[end:])])

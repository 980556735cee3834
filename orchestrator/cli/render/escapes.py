"""Escapes text of programs, hosts and users, so that it can't control the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable

from orchestrator.errors import printable

_OUR_COLOURS = re.compile(r"\x1b\[(?:3[0-7]|0)m")  # the sequences that cli.group.style writes
_SGR = re.compile(r"\x1b\[[0-9;:]*m")
# CSI sequences, and OSC sequences with their end
_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


def page(text: str) -> str:
    """Return a text of several lines with control characters escaped, except the colours that orch itself sets."""
    return _outside(_OUR_COLOURS, text, printable)


def one_line(text: str) -> str:
    """Return a text for one line, with control characters, line ends and tabs escaped."""
    return printable(text, keep="")


def log_line(text: str) -> str:
    """Return a log line that keeps its colours and resets them at its end. Other sequences are removed or escaped."""
    shown = _outside(_SGR, text, lambda part: printable(_SEQUENCES.sub("", part)))
    return f"{shown}\x1b[0m" if "\x1b" in shown and not shown.endswith("\x1b[0m") else shown


def plain(text: str) -> str:
    """Return a text for one line without colours and other sequences."""
    return printable(_SEQUENCES.sub("", text), keep="")


def _outside(kept: re.Pattern[str], text: str, change: Callable[[str], str]) -> str:
    pieces, end = [], 0
    for match in kept.finditer(text):
        pieces += [change(text[end : match.start()]), match[0]]
        end = match.end()
    return "".join([*pieces, change(text[end:])])

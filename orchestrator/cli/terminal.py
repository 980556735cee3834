"""Functions for commands that use the terminal itself, for example to ask a question or to start a shell."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from orchestrator.errors import OrchError
from orchestrator.node.system.private import give_back_umask


def has_terminal() -> bool:
    """Return True if both stdin and stdout are terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def speaks_utf8() -> bool:
    """Return True if the user's locale uses UTF-8. Python's own encoding is no evidence, because it is always UTF-8."""
    said = {name: os.environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")}
    if sys.flags.utf8_mode and said["LC_CTYPE"] == "C.UTF-8":  # Python has set this variable itself
        said["LC_CTYPE"] = ""
    name = next(filter(None, said.values()), "").lower()
    return name.partition("@")[0].endswith(("utf-8", "utf8"))


def asks(*, yes: bool) -> bool:
    """Return True if a confirmation is needed: the command runs at a terminal, and without the option --yes."""
    return not yes and sys.stdin.isatty() and sys.stderr.isatty()


def is_wanted(question: str, *, yes: bool) -> bool:
    """Ask the user for confirmation. Return True if the user confirms, or if no confirmation is needed."""
    return not asks(yes=yes) or click.confirm(question, err=True)


def become(argv: Sequence[str]) -> NoReturn:
    """Replace this process by a program, which then receives all signals and determines the exit code."""
    sys.stdout.flush()
    give_back_umask()
    try:
        os.execvp(argv[0], list(argv))  # noqa: S606 (an argv list without a shell)
    except FileNotFoundError:
        raise OrchError(f"there is no {argv[0]} on this machine", f"install it, or put it on PATH: {argv[0]}") from None

"""The commands that take over this terminal: a shell on a node of a run, and one of its ranks once more."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from orchestrator.errors import OrchError
from orchestrator.node.system.private import give_back_umask


def has_terminal() -> bool:
    """Is a person at both ends of this process?"""
    return sys.stdin.isatty() and sys.stdout.isatty()


def speaks_utf8() -> bool:
    """Does this person's locale have more than ASCII? Python itself speaks UTF-8 also in the locale C."""
    said = {name: os.environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")}
    if sys.flags.utf8_mode and said["LC_CTYPE"] == "C.UTF-8":  # that was Python's doing
        said["LC_CTYPE"] = ""
    name = next(filter(None, said.values()), "").lower()
    return name.partition("@")[0].endswith(("utf-8", "utf8"))


def asks(*, yes: bool) -> bool:
    """Is a person to be asked first: is one there, who has not answered already (`yes`)?"""
    return not yes and sys.stdin.isatty() and sys.stderr.isatty()


def is_wanted(question: str, *, yes: bool) -> bool:
    """Ask the person at the terminal; true where nobody is to be asked."""
    return not asks(yes=yes) or click.confirm(question, err=True)


def become(argv: Sequence[str]) -> NoReturn:
    """Let the program take this process's place, so that its signals and its exit code are its own."""
    sys.stdout.flush()
    give_back_umask()
    try:
        os.execvp(argv[0], list(argv))  # noqa: S606 (an argv list)
    except FileNotFoundError:
        raise OrchError(f"there is no {argv[0]} on this machine", f"install it, or put it on PATH: {argv[0]}") from None

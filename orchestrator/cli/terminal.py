"""The commands that take over this terminal: a shell on a node of a run, and one of its ranks once more."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from orchestrator.errors import OrchError
from orchestrator.node.system.private import give_back_umask


def has_terminal() -> bool:
    """Is a person at both ends of this process?"""
    return sys.stdin.isatty() and sys.stdout.isatty()


def become(argv: Sequence[str]) -> NoReturn:
    """Let the program take this process's place, so that its signals and its exit code are its own."""
    sys.stdout.flush()
    give_back_umask()
    try:
        os.execvp(argv[0], list(argv))  # noqa: S606 (an argv list)
    except FileNotFoundError:
        raise OrchError(f"there is no {argv[0]} on this machine", f"install it, or put it on PATH: {argv[0]}") from None

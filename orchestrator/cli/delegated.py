"""Forwards commands about a delegated run to the machine that supervises the run."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any


def delegated(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command so that it runs on the machine that supervises the run in its argument RUN."""

    @functools.wraps(command)
    def wrapped(run: str | None, **options: Any) -> Any:
        code = None if run is None else passed_on(run, sys.argv[1:])
        return command(run=run, **options) if code is None else code

    return wrapped


def passed_on(run: str, words: list[str]) -> int | None:
    """Run this command line on the machine that supervises the run, and return its exit code. If this machine
    supervises the run, do nothing and return None.
    """
    from orchestrator.runs.store import state_root

    root = state_root()
    if not (root / "elsewhere").is_dir():
        return None
    from orchestrator.operations.submission.delegate import find_pointer, reach

    found = find_pointer(root, run)
    return None if found is None else reach(found, run, words)

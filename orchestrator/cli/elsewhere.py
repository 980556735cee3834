"""Commands about a run that another machine looks after are given there; and what takes such a run over."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from orchestrator.cli.group import orch, print_json

# The rest is imported where it is used: `orch status` must not wait for what it doesn't need.
# ruff: noqa: PLC0415


def where_it_is(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, given on the machine that looks after its RUN."""

    @functools.wraps(command)
    def wrapped(run: str | None, **options: Any) -> Any:
        from orchestrator.store import state_root

        root = state_root()
        if run is not None and (root / "elsewhere").is_dir():
            from orchestrator.elsewhere import find_pointer, reach

            if (pointer := find_pointer(root, run)) is not None:
                return reach(pointer, run, sys.argv[1:])
        return command(run=run, **options)

    return wrapped


@orch.command(hidden=True)
def accept() -> int:
    """Take over a run that another machine's orch sends on the standard input."""
    from orchestrator import elsewhere
    from orchestrator.store import state_root

    print_json({"run_id": elsewhere.accept(state_root(), sys.stdin.buffer)})
    return 0

"""Commands about a delegated run, which another machine's supervisor looks after: they are run over there."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any


def delegated(command: Callable[..., Any]) -> Callable[..., Any]:
    """Run the command on the machine whose supervisor looks after its RUN."""

    @functools.wraps(command)
    def wrapped(run: str | None, **options: Any) -> Any:
        from orchestrator.runs.store import state_root

        root = state_root()
        if run is not None and (root / "elsewhere").is_dir():
            from orchestrator.operations.delegate import find_pointer, reach

            if (found := find_pointer(root, run)) is not None:
                return reach(found, run, sys.argv[1:])
        return command(run=run, **options)

    return wrapped

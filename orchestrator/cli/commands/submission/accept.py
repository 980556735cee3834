"""orch accept: take over a run from orch on another machine."""

from __future__ import annotations

import sys

from orchestrator.cli.group import orch, print_json


@orch.command(hidden=True)
def accept() -> int:
    """Take over a run that another machine's orch sends on the standard input."""
    from orchestrator.operations.submission import delegate
    from orchestrator.runs.store import state_root

    print_json({"run_id": delegate.accept(state_root(), sys.stdin.buffer)})
    return 0

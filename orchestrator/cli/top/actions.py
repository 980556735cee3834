"""The actions on a run that several pages offer. An action that changes the run needs a confirmation."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from orchestrator.cli.output import lines_on_proofs
from orchestrator.cli.top.page import Act, Confirm
from orchestrator.runs.store import RunDir


def browse(root: Path, run: RunDir) -> Act:
    """Return the action that opens the web page of a run in a browser, or tells how to open it from another machine."""

    def act() -> str:
        from orchestrator.cli import opening

        server, code = opening.detached_server(root)
        return "; ".join([*opening.open_page(root, server, code, f"/run/{quote(run.run_id, safe='')}"),
                          "the server keeps running; to stop it: orch ui --stop"])  # fmt: skip

    return Act(act)


def cancel_of(root: Path, run: RunDir) -> Confirm:
    """Return the action that cancels a run after a confirmation."""

    def act() -> str:
        from orchestrator.operations import runs as operations

        done = operations.cancel(root, run, now=False)
        return "; ".join([done.said, *lines_on_proofs(done.proofs)])

    return Confirm(f"cancel {run.run_id}? scripts that use orchestrator.training save first (y/N)", act)

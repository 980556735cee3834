"""orch why: explain how a run ended."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from orchestrator.cli import complete
from orchestrator.cli.delegated import delegated
from orchestrator.cli.group import orch, print_json, show, style, width_of
from orchestrator.runs.state import RunState, RunStatus

if TYPE_CHECKING:
    from orchestrator.runs.store import RunDir


@orch.command(epilog="Example: orch why last")
@click.argument("run", shell_complete=complete.runs)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@delegated
def why(run: str, as_json: bool) -> int:
    """Explain how a run ended: rank, host, traceback, remedy."""
    from orchestrator.cli.render import runs as render
    from orchestrator.looking.account import account_of
    from orchestrator.looking.state import state_of
    from orchestrator.runs.store import find_run, state_root

    folder = find_run(state_root(), run)
    state = state_of(folder)
    if as_json:
        print_json(state.verdict.to_json() if state.verdict else None)
    else:
        said = findings_of(folder, state)
        page = render.verdict_page(state, style, time.time(), width_of(sys.stdout), account_of(folder, state))
        show("\n".join([page, *(["", *(f"  {line}" for line in said)] if said else [])]))
    return 0


def findings_of(folder: RunDir, state: RunState) -> list[str]:
    """Return a line for each unusual state in the newest samples of a run; empty if the run succeeded.

    If the run failed or was cancelled, these are the last samples before its end.
    """
    if state.state == RunStatus.SUCCEEDED:
        return []
    from orchestrator.runs.files.samples import newest_samples
    from orchestrator.runs.findings import findings, in_words

    when, hosts = "before the end, " if state.is_final else "", {each.node: each.host for each in state.nodes}
    return [f"{when}{line}" for line in in_words(findings(newest_samples(folder)), hosts)]

"""orch why: why a run ended as it did."""

from __future__ import annotations

import click

from orchestrator.cli import complete
from orchestrator.cli.delegated import delegated
from orchestrator.cli.group import orch, print_json, show, style


@orch.command()
@click.argument("run", shell_complete=complete.runs)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@delegated
def why(run: str, as_json: bool) -> int:
    """Say why a run ended as it did: rank, host, code, traceback, last lines, and what to do."""
    from orchestrator.cli.render import runs as render
    from orchestrator.runs.store import find_run, state_root
    from orchestrator.supervisor.reconcile import state_of

    state = state_of(find_run(state_root(), run))
    if as_json:
        print_json(state.verdict.to_json() if state.verdict else None)
    else:
        show(render.verdict_page(state, style))
    return 0

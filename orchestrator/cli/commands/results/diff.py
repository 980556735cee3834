"""orch diff: show the differences between two runs."""

from __future__ import annotations

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch, print_json, show, style


@orch.command(epilog="Example: orch diff train-c2yf3v last")
@click.argument("one", metavar="RUN", shell_complete=complete.runs)
@click.argument("other", metavar="RUN", shell_complete=complete.runs)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def diff(one: str, other: str, as_json: bool) -> int:
    """Compare two runs: job, profile, code, versions, result."""
    from orchestrator.cli.render import results
    from orchestrator.looking.state import state_of
    from orchestrator.operations.diff import compare
    from orchestrator.runs.store import find_run, state_root

    root = state_root()
    runs = find_run(root, one), find_run(root, other)
    found = compare(*runs, (state_of(runs[0]), state_of(runs[1])))
    if as_json:
        print_json(found.to_json())
    else:
        show(results.comparison_page(found, style))
    return 0

"""orch outputs: list the files that a run has written."""

from __future__ import annotations

import click

from orchestrator.cli import complete
from orchestrator.cli.delegated import delegated
from orchestrator.cli.group import orch, print_json, show


@orch.command(epilog="Example: orch outputs last")
@click.argument("run", shell_complete=complete.runs)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@delegated
def outputs(run: str, as_json: bool) -> int:
    """List a run's output files, such as plots and weights.

    Outputs are the files that the ranks wrote in their working folder or in $ORCH_OUTPUT_DIR. Files that are still on
    the run's nodes are listed with the reason, and orch pull RUN --outputs fetches them.
    """
    from dataclasses import asdict

    from orchestrator.cli.render import results, runs
    from orchestrator.looking.state import state_of
    from orchestrator.runs.files.outputs import outputs_of, passed_over
    from orchestrator.runs.store import find_run, state_root

    folder = find_run(state_root(), run)
    found, skipped, state = outputs_of(folder), passed_over(folder), state_of(folder)
    if as_json:
        files, left = [each.to_json() for each in found], [asdict(each) for each in state.left]
        print_json({"files": files, "passed_over": skipped, "left": left})
    else:
        show(results.outputs_page(found, skipped, runs.left_lines(state)))
    return 0

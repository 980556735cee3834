"""orch checkpoints: list a run's checkpoints, and whether each is complete."""

from __future__ import annotations

import click

from orchestrator.cli import complete
from orchestrator.cli.delegated import delegated
from orchestrator.cli.group import orch, print_json, show, style
from orchestrator.errors import EXIT_ORCH_FAILED


@orch.command(epilog="Example: orch checkpoints last --verify")
@click.argument("run", shell_complete=complete.runs)
@click.option("--verify", is_flag=True, help="Verify checksums.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@delegated
def checkpoints(run: str, verify: bool, as_json: bool) -> int:
    """List a run's checkpoints: step, metric, size, state.

    With --verify, the exit code is 1 if a checkpoint is incomplete or corrupt.
    """
    from orchestrator.cli.render import results
    from orchestrator.runs.files.checkpoints import all_of, checkpoint_folder, not_here, unusable
    from orchestrator.runs.store import find_run, state_root

    folder = find_run(state_root(), run)
    found = all_of(folder, verify=verify)
    if as_json:
        print_json([each.to_json() for each in found])
    else:
        others = () if found else unusable(folder)
        show(results.checkpoints_page(found, str(checkpoint_folder(folder)), style, others, not_here(folder)))
    return EXIT_ORCH_FAILED if verify and not all(each.is_whole for each in found) else 0

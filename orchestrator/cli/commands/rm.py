"""orch rm: remove runs that have ended."""

from __future__ import annotations

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch, say
from orchestrator.errors import UsageError


@orch.command()
@click.argument("runs", nargs=-1, metavar="RUN...", shell_complete=complete.runs_and_sweeps)
@click.option("--keep", type=click.IntRange(1), metavar="N", help="Remove all finished runs but the newest N.")
def rm(runs: tuple[str, ...], keep: int | None) -> int:
    """Remove finished runs, with their logs and checkpoints. ORCH_KEEP_RUNS=N does so after every run."""
    from orchestrator.cli.render.runs import removed_outputs
    from orchestrator.operations import runs as run_operations
    from orchestrator.runs.store import state_root
    from orchestrator.runs.sweeps import find_runs
    from orchestrator.supervisor.supervisor import prune

    if not runs and keep is None:
        raise UsageError("nothing to remove was named", "orch rm RUN..., or orch rm --keep 50")
    root = state_root()
    removed = [folder for reference in runs for folder in find_runs(root, reference)]
    for folder in removed:
        gone = run_operations.outputs_that_go(folder)
        run_operations.remove(root, folder)
        for line in removed_outputs(folder.run_id, gone):
            say(line)
    removed += prune(root, keep) if keep else []
    names = dict.fromkeys(folder.run_id for folder in removed)
    say(f"removed {', '.join(names) or 'nothing'}")
    return 0

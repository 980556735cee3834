"""orch logs: what the ranks have printed."""

from __future__ import annotations

import click

from orchestrator.cli import complete
from orchestrator.cli.delegated import delegated
from orchestrator.cli.follow import follow as follow_run
from orchestrator.cli.group import orch
from orchestrator.cli.output import print_logs
from orchestrator.errors import OrchError, UsageError


@orch.command()
@click.argument("run", shell_complete=complete.runs_and_sweeps)
@click.option("--follow", "-f", is_flag=True, help="Go on until the run ends; Ctrl-C stops looking, not the run.")
@click.option("--rank", type=click.IntRange(0), help="This rank's log instead of rank 0's.")
@click.option("--node", type=click.IntRange(0), help="All ranks of this node.")
@click.option("--all", "-a", "everything", is_flag=True, help="All ranks of all nodes.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines of each log.")
@click.option("--raw", is_flag=True, help="Print every byte as the program wrote it, terminal sequences too.")
@delegated
def logs(
    run: str, follow: bool, rank: int | None, node: int | None, everything: bool, tail: int | None, raw: bool
) -> int:
    """Print the log of rank 0, or of the ranks asked for; of a sweep, those of each of its runs."""
    from orchestrator.cli.sweeps import logs_of
    from orchestrator.operations import runs as run_operations
    from orchestrator.runs.logs import Selection, log_files
    from orchestrator.runs.store import find_run
    from orchestrator.runs.sweeps import find_sweep, points_in
    from orchestrator.supervisor.reconcile import state_of
    from orchestrator.supervisor.supervisor import attended_root

    if everything and (rank is not None or node is not None):
        raise UsageError("--all excludes --rank and --node", "leave it out")
    root, selection = attended_root(), Selection(rank, node, everything)
    if (sweep := find_sweep(root, run)) is not None:
        if follow:
            raise UsageError("--follow follows one run", f"name a point of the sweep: {sweep}.0")
        return logs_of(points_in(root, sweep), selection, tail, raw=raw)
    folder = find_run(root, run)
    if follow:
        return follow_run(folder, selection=selection, tail=tail, raw=raw)
    with run_operations.bringing_logs(folder, selection):
        pass
    if not log_files(folder, selection):
        state = state_of(folder)
        which = f"rank {rank} has" if rank is not None else f"node {node} has" if node is not None else "there is"
        raise OrchError(f"{which} no log: the run is {state.state}", f"see: orch status {folder.run_id}")
    print_logs(folder, selection, tail, raw=raw)
    return 0

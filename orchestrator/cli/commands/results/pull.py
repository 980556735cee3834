"""orch pull: copy a run's logs, metrics, result and a checkpoint to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch, print_json, say, show
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.runs.store import RunDir


@orch.command(epilog="Example: orch pull last --checkpoint best --to results")
@click.argument("run", shell_complete=complete.runs_and_sweeps)
@click.option(
    "--checkpoint", metavar="best|latest|none|STEP", help="Checkpoint to copy (default: latest; with --best: best)."
)
@click.option("--best", is_flag=True, help="Copy the best run of a sweep.")
@click.option("--metric", "-m", metavar="NAME", help="Metric for --best (default: the job's).")
@click.option("--outputs", is_flag=True, help="First fetch the outputs that are still on the nodes.")
@click.option("--to", type=click.Path(path_type=Path), metavar="DIR", help="Destination (default: ./RUN).")
@click.option("--in-place", is_flag=True, help="Copy only the outputs, into the job's code folder.")
@click.option("--force", is_flag=True, help="With --in-place: replace files that have other content.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def pull(
    run: str, checkpoint: str | None, best: bool, metric: str | None, outputs: bool, to: Path | None, in_place: bool,
    force: bool, as_json: bool,
) -> int:  # fmt: skip
    """Copy logs, results, outputs and a checkpoint to a folder.

    The same command again copies only new files and new lines.
    """
    from orchestrator.cli.render import results
    from orchestrator.node.system.private import as_the_user
    from orchestrator.operations import pull as collect
    from orchestrator.runs.store import find_run, state_root

    if metric is not None and not best:
        raise UsageError(
            "--metric needs --best", "--checkpoint best uses `checkpoint.keep_best` or `metric` of the job"
        )
    if in_place and (to is not None or checkpoint is not None):
        raise UsageError("--in-place copies outputs to the code folder", "leave --to and --checkpoint out")
    if force and not in_place:
        raise UsageError("--force needs --in-place", "orch pull RUN --in-place --force")
    folder = _best_of(run, metric) if best else find_run(state_root(), run)
    if outputs:
        collect.bring_outputs(folder)
    if in_place:
        return _place(folder, force=force, as_json=as_json)
    with as_the_user():
        pulled = collect.pull(folder, to or Path(folder.run_id), checkpoint or ("best" if best else "latest"), say)
    if as_json:
        print_json(pulled.to_json())
    else:
        show(results.pulled_page(pulled))
    return 0


def _place(run: RunDir, *, force: bool, as_json: bool) -> int:
    from orchestrator.cli.render import results
    from orchestrator.node.system.private import as_the_user
    from orchestrator.operations.placing import place

    with as_the_user():
        placed = place(run, force=force)
    if as_json:
        print_json(placed.to_json())
    else:
        show(results.placed_page(placed))
    return 0


def _best_of(reference: str, metric: str | None) -> RunDir:
    from orchestrator.operations.ranking import rank, selected_runs
    from orchestrator.protocol.quantities import number
    from orchestrator.runs.store import state_root

    title, runs = selected_runs(state_root(), [reference])
    ranking = rank(title, runs, metric, None)
    best = ranking.rows[0]
    say(f"{best.run_id} is the best of {title}: {ranking.metric} {number(best.value)}")
    return next(run for run in runs if run.run_id == best.run_id)

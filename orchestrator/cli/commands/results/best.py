"""orch best: rank runs, or the points of a sweep, by a metric."""

from __future__ import annotations

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch, print_json, say, show, style


@orch.command(epilog="Example: orch best --metric accuracy")
@click.argument("runs", nargs=-1, metavar="[RUN|SWEEP]...", shell_complete=complete.runs_and_sweeps)
@click.option("--name", metavar="NAME", help="Rank all runs of the job with this name.")
@click.option("--metric", "-m", metavar="NAME", help="Metric to rank by (default: the job's metric).")
@click.option("--lower", "order", flag_value="lower", help="Lower is better (overrides the job).")
@click.option("--higher", "order", flag_value="higher", help="Higher is better (overrides the job).")
@click.option("--number", "-n", type=click.IntRange(1), metavar="N", help="Show only the best N runs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def best(
    runs: tuple[str, ...], name: str | None, metric: str | None, order: str | None, number: int | None, as_json: bool
) -> int:
    """Rank runs by a metric such as accuracy, the best first.

    RUN and SWEEP are ids or job names; a SWEEP means all its runs. Without arguments, the runs of the newest sweep are
    ranked.
    """
    from orchestrator.cli.render import sweeps
    from orchestrator.operations.ranking import rank, selected_runs
    from orchestrator.protocol.metric import Better
    from orchestrator.supervisor.background import attended_root

    title, meant = selected_runs(attended_root(), runs, name)
    ranking = rank(title, meant, metric, Better(order) if order else None)
    rows = ranking.rows[:number]
    if as_json:
        print_json([row.to_json() for row in rows])
        return 0
    say(f"{title} by {ranking.metric}, the {'lowest' if ranking.better is Better.LOWER else 'highest'} first")
    show(sweeps.best_page(ranking.metric, rows, style))
    return 0

"""orch best: the runs of a sweep, ranked by a metric."""

from __future__ import annotations

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch, print_json, say, show, style
from orchestrator.errors import UsageError


@orch.command()
@click.argument("sweep", required=False, shell_complete=complete.sweeps)
@click.option(
    "--metric", "-m", metavar="NAME", help="A number of result.json, or of metrics.jsonl; the job's metric by default."
)
@click.option("--lower", "order", flag_value="lower", help="Lower is better, whatever the job or the name says.")
@click.option("--higher", "order", flag_value="higher", help="Higher is better, whatever the job or the name says.")
@click.option("--number", "-n", type=click.IntRange(1), help="Only the best N.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def best(sweep: str | None, metric: str | None, order: str | None, number: int | None, as_json: bool) -> int:
    """Rank the runs of SWEEP (the newest one by default) by a metric, the best first."""
    from orchestrator.cli.render import sweeps
    from orchestrator.operations.runs import state_or_why_not
    from orchestrator.runs import metrics
    from orchestrator.runs.sweeps import find_sweep, newest_sweep, points_in
    from orchestrator.supervisor.supervisor import attended_root

    root = attended_root()
    name = find_sweep(root, sweep) if sweep is not None else newest_sweep(root)
    if name is None:
        raise UsageError(f"'{sweep}' is no sweep", "orch status lists them; without a name it is the newest")
    runs = points_in(root, name)
    records = [run.read("run.json") for run in runs]
    found = [metrics.metrics_of(run) for run in runs]
    of_job = next(filter(None, map(metrics.metric_of_job, records)), None)
    if metric is None and of_job is None:
        raise UsageError(f"the job of {name} names no metric", f"name one: --metric NAME; {metrics.names_of(found)}")
    metric = metric or (of_job.name if of_job else "")
    metrics.check_metric(metric, found)
    better = metrics.Better(order) if order else metrics.better_of(metric, of_job)
    rows = [
        metrics.Ranked(run.run_id, state_or_why_not(run).state, run.record().values, its.get(metric))
        for run, its in zip(runs, found, strict=True)
    ]
    rows = metrics.ranked(rows, better=better)[:number]
    if as_json:
        print_json([row.to_json() for row in rows])
        return 0
    say(f"{name} by {metric}, the {'lowest' if better is metrics.Better.LOWER else 'highest'} first")
    show(sweeps.best_page(metric, rows, style))
    return 0

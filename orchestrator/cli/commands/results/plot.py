"""orch plot: draw a metric of runs by step in the terminal."""

from __future__ import annotations

import difflib
import shutil
from typing import Final

import click

from orchestrator.cli import complete
from orchestrator.cli.group import colour_is_wanted, orch, print_json, say, show, style
from orchestrator.cli.terminal import speaks_utf8
from orchestrator.errors import UsageError

MOST_CURVES: Final = 8
TALLEST: Final = 24


@orch.command(epilog="Example: orch plot last loss")
@click.argument("words", nargs=-1, required=True, metavar="RUN... [METRIC]", shell_complete=complete.runs_and_sweeps)
@click.option(
    "--metric", "-m", metavar="NAME", help="Metric, instead of METRIC; eval.loss is the loss of the evaluations."
)
@click.option("--ascii", "plain", is_flag=True, help="Draw in ASCII; the default if the locale is not UTF-8.")
@click.option("--json", "as_json", is_flag=True, help="Print the points as JSON.")
def plot(words: tuple[str, ...], metric: str | None, plain: bool, as_json: bool) -> int:
    """Plot a metric of one or several runs by step.

    Values come from run.metric and from the program's own files (docs/metrics.md). Without METRIC, the command plots
    the job's metric, else the loss.
    """
    from orchestrator.cli.render.plot import Curve, plot_page
    from orchestrator.operations.ranking import selected_runs
    from orchestrator.runs.files import metrics
    from orchestrator.runs.files.written_metrics import HOW_TO_WRITE
    from orchestrator.supervisor.background import attended_root

    names, metric = (words[:-1], words[-1]) if metric is None and len(words) > 1 else (words, metric)
    _, runs = selected_runs(attended_root(), names)
    of_job = next(filter(None, (metrics.metric_of_job(run.read("run.json")) for run in runs)), None)
    if metric is None:
        names_there = {name for run in runs for name in metrics.names_of_series(run)}
        metric = of_job.name if of_job is not None else metrics.default_metric(names_there)
    found = [(run.run_id, metrics.series(run, metric)) for run in runs]
    curves = [Curve(name, tuple(points)) for name, points in found if points]
    if not curves:
        there = sorted({name for run in runs for name in metrics.names_of_series(run)})
        near = difflib.get_close_matches(metric, there, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        none = f"none of them has written a metric yet; {HOW_TO_WRITE}"
        hint = f"{meant}they have: {', '.join(there)}" if there else none
        raise UsageError(f"none of these runs has a metric '{metric}'", hint)
    if as_json:
        print_json([{"run_id": curve.name, "metric": metric, "points": curve.points} for curve in curves])
        return 0
    if len(curves) > MOST_CURVES:
        say(f"the first {MOST_CURVES} of {len(curves)} runs are shown; orch best ranks them all")
        curves = curves[:MOST_CURVES]
    for name in (name for name, points in found if not points):
        say(f"{name} has not written {metric} yet")
    size = shutil.get_terminal_size()
    is_telling = len(curves) == 1 or colour_is_wanted()  # without colours, curves of braille dots all look the same
    braille = is_telling and not plain and speaks_utf8()
    show(plot_page(metric, curves, (size.columns, min(size.lines, TALLEST)), braille=braille, style=style))
    return 0

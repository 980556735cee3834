"""Sweeps: their submit, `best`, and what status, logs, cancel and wait do for all runs of one."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.group import orch, print_json, say, style
from orchestrator.errors import EXIT_ORCH_FAILED, UsageError

if TYPE_CHECKING:
    from orchestrator.logs import Selection
    from orchestrator.preparing import Request
    from orchestrator.store import RunDir

# The rest is imported where it is used: `orch status` must not wait for what it doesn't need.
# ruff: noqa: PLC0415


def submit_sweep(
    root: Path, asked: Request, options: tuple[str, ...], parallel: int | None, *, dry_run: bool, as_json: bool
) -> int:
    """Submit the points of --sweep, or print what they would be."""
    from orchestrator import controller, elsewhere, preparing, sweep_pages, sweeping
    from orchestrator.cli.submit import show_plan
    from orchestrator.runrecord import code_note
    from orchestrator.sweep import sweep_of

    found = sweeping.prepare_sweep(root, asked, options, parallel)
    if elsewhere.is_elsewhere(found.prepared[0]):
        hint = "submit it there, or with --set profile.supervisor=here"
        raise UsageError("another machine looks after the runs of this profile, which can't be given a sweep", hint)
    for axis in found.axes:
        if axis.word != axis.field:
            say(f"sweep: {axis.word} is {axis.field}")
    if dry_run:
        if not as_json:
            click.echo(f"{sweep_pages.points_page(found.points)}\n\npoint 0:")
        first = found.prepared[0]
        show_plan(preparing.plan_for(root, first), as_json, first.environment.secrets)
        return 0
    runs = sweeping.submit_sweep(root, found)
    sweep = str(sweep_of(runs[0].run_id))
    for note in (code_note(runs[0].events()), controller.note_on_supervisor(found.prepared[0])):
        if note:
            say(note)
    if as_json:
        print_json({"sweep": sweep, "runs": [run.run_id for run in runs], "folder": str(root / "sweeps" / sweep)})
        return 0
    if not sys.stdout.isatty():
        click.echo(sweep)  # alone on stdout, so that a script can take it
    say(f"submitted {sweep}: {len(runs)} runs, {runs[0].run_id} to {runs[-1].run_id}")
    say(f"  orch status {sweep}     all of them\n  orch best --metric NAME {sweep}     ranked")
    return 0


def status_of(root: Path, sweep: str, *, as_json: bool) -> str:
    """The page of a sweep."""
    from orchestrator import sweep_pages
    from orchestrator.controller import state_or_why_not
    from orchestrator.sweeps import points_in, values_of

    runs = points_in(root, sweep)
    points = [(state_or_why_not(run), values_of(run.read("run.json") or {})) for run in runs]
    if as_json:
        return json.dumps(
            {
                "sweep": sweep,
                "state": sweep_pages.overall([state for state, _ in points]),
                "points": [{**state.to_json(), "values": values} for state, values in points],
            },
            indent=1,
        )
    return sweep_pages.sweep_page(sweep, points, time.time(), style)


def logs_of(runs: list[RunDir], selection: Selection, tail: int | None) -> int:
    """Print the chosen logs of each run that has one, under its name and values."""
    from orchestrator.cli.runs import print_logs
    from orchestrator.logs import log_files
    from orchestrator.sweeps import values_of

    for run in runs:
        if log_files(run, selection):
            values = values_of(run.read("run.json") or {})
            words = " ".join(f"{word}={value}" for word, value in values.items())
            click.echo(style(f"=== {run.run_id} {words} ===", "cyan"))
            print_logs(run, selection, tail)
    return 0


def cancel_all(root: Path, runs: list[RunDir], *, now: bool, as_json: bool) -> int:
    """Cancel all runs of a sweep that have not ended."""
    from orchestrator import sweeping
    from orchestrator.cli.runs import what_is_left

    ends: list[Any] = []
    sweeping.cancel_all(root, runs, now=now, on_end=lambda state, proofs: ends.append((state, proofs)))
    bad = [(state, proof) for state, proofs in ends for proof in proofs if proof.survivors or proof.is_away]
    if as_json:
        print_json([{**state.to_json(), "proofs": [proof.__dict__ for proof in proofs]} for state, proofs in ends])
    else:
        say(f"{len(ends)} runs cancelled, {len(runs) - len(ends)} had ended before")
        for state, proof in bad:
            say(f"  {state.run_id} on {proof.host}: {what_is_left(proof)}")
        if ends and not bad:
            say("  0 processes left")
    return EXIT_ORCH_FAILED if bad else 0


def wait_all(runs: list[RunDir], sweep: str, timeout: float | None, *, as_json: bool) -> int:
    """Wait for all runs of a sweep; the exit code is that of the worst."""
    from orchestrator import sweep_pages, sweeping

    states = sweeping.wait_all(runs, timeout)
    if as_json:
        print_json([state.to_json() for state in states])
    else:
        say(f"{sweep} {sweep_pages.overall(states)}: {sweep_pages.counted(states)}")
    return sweeping.exit_code(states)


@orch.command()
@click.argument("sweep", required=False)
@click.option("--metric", "-m", required=True, metavar="NAME", help="A number of result.json, or of metrics.jsonl.")
@click.option("--lower", "order", flag_value="lower", help="Less is better; the default for a loss, an error, seconds.")
@click.option("--higher", "order", flag_value="higher", help="More is better; the default for all others.")
@click.option("--number", "-n", type=click.IntRange(1), help="Only the best N.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def best(sweep: str | None, metric: str, order: str | None, number: int | None, as_json: bool) -> int:
    """Rank the runs of SWEEP (the newest one by default) by a metric, the best first."""
    from orchestrator import ranking, sweep_pages
    from orchestrator.controller import state_or_why_not
    from orchestrator.supervisor import attended_root
    from orchestrator.sweeps import find_sweep, newest_sweep, points_in, values_of

    root = attended_root()
    name = find_sweep(root, sweep) if sweep is not None else newest_sweep(root)
    if name is None:
        raise UsageError(f"'{sweep}' is no sweep", "orch status lists them; without a name it is the newest")
    runs = points_in(root, name)
    found = [ranking.metrics_of(run) for run in runs]
    ranking.check_metric(metric, found)
    lower = order == "lower" if order else ranking.is_better_lower(metric)
    rows = [
        ranking.Ranked(run.run_id, state_or_why_not(run).state, values_of(run.read("run.json") or {}), its.get(metric))
        for run, its in zip(runs, found, strict=True)
    ]
    rows = ranking.ranked(rows, lower=lower)[:number]
    if as_json:
        print_json([row.to_json() for row in rows])
        return 0
    say(f"{name} by {metric}, the {'lowest' if lower else 'highest'} first")
    click.echo(sweep_pages.best_page(metric, rows, style))
    return 0

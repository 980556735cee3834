"""Sweeps: their submit, `best`, and what status, logs, cancel and wait do for all runs of one."""

from __future__ import annotations

import json
import sys
import time
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.group import print_json, say, show, style
from orchestrator.errors import EXIT_ORCH_FAILED, UsageError

if TYPE_CHECKING:
    from orchestrator.prepare.prepare import Request
    from orchestrator.runs.logs import Selection
    from orchestrator.runs.store import RunDir


def submit_sweep(
    root: Path, asked: Request, options: tuple[str, ...], parallel: int | None, *, dry_run: bool, as_json: bool
) -> int:
    """Submit the points of --sweep, or print what they would be."""
    from orchestrator.cli.output import show_plan
    from orchestrator.cli.render import sweeps
    from orchestrator.operations import delegate, submit
    from orchestrator.operations import sweep as sweeping
    from orchestrator.prepare import prepare
    from orchestrator.runs.run_id import sweep_of
    from orchestrator.runs.summary import code_note

    found = sweeping.prepare_sweep(root, asked, options, parallel)
    if delegate.is_elsewhere(found.prepared[0]):
        hint = "submit it there, or with --set profile.supervisor=here"
        raise UsageError("another machine looks after the runs of this profile, which can't be given a sweep", hint)
    for axis in found.axes:
        if axis.word != axis.field:
            say(f"sweep: {axis.word} is {axis.field}")
    for note in submit.notes_on_request(found.prepared[0], asked.profile):
        say(note)
    if dry_run:
        if not as_json:
            show(f"{sweeps.points_page(found.points)}\n\npoint 0:")
        first = found.prepared[0]
        show_plan(prepare.plan_for(root, first), as_json, first.environment, prepare.shipment(first))
        return 0
    runs = sweeping.submit_sweep(root, found)
    sweep = str(sweep_of(runs[0].run_id))
    for note in (code_note(runs[0].events()), submit.note_on_supervisor(found.prepared[0])):
        if note:
            say(note)
    if as_json:
        print_json({"sweep": sweep, "runs": [run.run_id for run in runs], "folder": str(root / "sweeps" / sweep)})
        return 0
    if not sys.stdout.isatty():
        click.echo(sweep)  # alone on stdout, so that a script can take it
    by = "" if found.prepared[0].loaded.job.metric else "--metric NAME "
    say(f"submitted {sweep}: {len(runs)} runs, {runs[0].run_id} to {runs[-1].run_id}")
    say(f"  orch status {sweep}     all of them\n  orch best {by}{sweep}     ranked")
    return 0


def status_of(root: Path, sweep: str, *, as_json: bool) -> str:
    """Return the page of a sweep."""
    from orchestrator.cli.render import sweeps
    from orchestrator.operations.runs import state_or_why_not
    from orchestrator.runs.sweeps import points_in

    runs = points_in(root, sweep)
    points = [(state_or_why_not(run), run.record().values) for run in runs]
    if as_json:
        return json.dumps(
            {
                "sweep": sweep,
                "state": sweeps.overall([state for state, _ in points]),
                "points": [{**state.to_json(), "values": dict(values)} for state, values in points],
            },
            indent=1,
        )
    return sweeps.sweep_page(sweep, points, time.time(), style)


def logs_of(runs: list[RunDir], selection: Selection, tail: int | None, *, raw: bool) -> int:
    """Print the chosen logs of each run that has one, under its name and values."""
    from orchestrator.cli.output import print_logs
    from orchestrator.cli.render import escapes
    from orchestrator.runs.logs import log_files

    for run in runs:
        if log_files(run, selection):
            values = run.record().values
            words = " ".join(f"{word}={value}" for word, value in values.items())
            show(style(escapes.one_line(f"=== {run.run_id} {words} ==="), "cyan"))
            print_logs(run, selection, tail, raw=raw)
    return 0


def cancel_all(root: Path, runs: list[RunDir], *, now: bool, as_json: bool) -> int:
    """Cancel all runs of a sweep that have not ended."""
    from orchestrator.cli.output import what_is_left
    from orchestrator.operations import sweep as sweeping
    from orchestrator.protocol.hostlist import by_words

    ends: list[Any] = []
    sweeping.cancel_all(root, runs, now=now, on_end=lambda state, proofs: ends.append((state, proofs)))
    bad = [(state, proof) for state, proofs in ends for proof in proofs if proof.survivors or proof.is_unreachable]
    if as_json:
        print_json([{**state.to_json(), "proofs": [proof.__dict__ for proof in proofs]} for state, proofs in ends])
    else:
        say(f"{len(ends)} runs cancelled, {len(runs) - len(ends)} had ended before")
        for run_id, proofs in groupby(bad, key=lambda each: each[0].run_id):
            for line in by_words((proof.host, what_is_left(proof)) for _, proof in proofs):
                say(f"  {run_id} on {line}")
        if ends and not bad:
            say("  0 processes left")
    return EXIT_ORCH_FAILED if bad else 0


def wait_all(runs: list[RunDir], sweep: str, timeout: float | None, *, as_json: bool) -> int:
    """Wait for all runs of a sweep; return the exit code of the worst."""
    from orchestrator.cli.render import sweeps
    from orchestrator.operations import sweep as sweeping

    states = sweeping.wait_all(runs, timeout)
    if as_json:
        print_json([state.to_json() for state in states])
    else:
        say(f"{sweep} {sweeps.overall(states)}: {sweeps.counted(states)}")
    return sweeping.exit_code(states)

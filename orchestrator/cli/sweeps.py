"""The parts of the commands submit, status, logs, cancel and wait that handle a whole sweep."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.group import print_id, print_json, say, say_all, show, style, width_of
from orchestrator.errors import EXIT_ORCH_FAILED

if TYPE_CHECKING:
    from orchestrator.operations.submission.sweep import SearchOptions, Sweep
    from orchestrator.prepare.prepare import Request
    from orchestrator.runs.files.log_filter import LineFilter
    from orchestrator.runs.files.logs import Selection
    from orchestrator.runs.state import RunState
    from orchestrator.runs.store import RunDir


def submit_points(
    root: Path,
    asked: Request,
    options: tuple[str, ...] | SearchOptions,
    parallel: int | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Submit the points of --sweep or the trials of --search. With `dry_run`, print them and submit nothing."""
    from orchestrator.cli.output import show_plan
    from orchestrator.cli.render import sweeps
    from orchestrator.cli.render.escapes import one_line
    from orchestrator.operations.submission import sweep as sweeping
    from orchestrator.operations.submission.submit import job_of, note_on_profile, note_on_scheduler
    from orchestrator.prepare import notes, prepare
    from orchestrator.runs.dependencies import was_queued
    from orchestrator.runs.run_id import sweep_of
    from orchestrator.runs.summary import code_note, left_out_note

    asked = replace(asked, plans=dry_run)
    found = (
        sweeping.prepare_sweep(root, asked, options, parallel)
        if isinstance(options, tuple)
        else sweeping.prepare_search(root, asked, options, parallel)
    )
    _say_fields(found)
    if found.search is not None:
        say(sweeps.search_line(found.search))
    say_all(*notes.notes_on_request(found.prepared[0], asked))
    if dry_run:
        if not as_json:
            page = sweeps.points_page(found.points) if found.search is None else sweeps.space_page(found.search)
            show(f"{page}\n\n{'point 0' if found.search is None else 'a trial, before it has its values'}:")
        first = found.prepared[0]
        show_plan(prepare.shown_plan(root, first), as_json, first.environment, prepare.shipment(first))
        return 0
    if found.plain.is_delegated:
        return _delegate(root, found, as_json=as_json)
    runs = sweeping.submit_sweep(root, found)
    sweep = str(sweep_of(runs[0].run_id))
    on_supervisor = notes.note_on_supervisor(found.prepared[0], starts_later=was_queued(runs[0]))
    events = runs[0].events()
    say_all(
        notes.note_on_python(found.prepared[0]),
        code_note(events),
        *left_out_note(events).splitlines(),
        on_supervisor,
        note_on_profile(runs[0]),
        one_line(note_on_scheduler(runs[0])),
    )
    if as_json:
        print_json({"sweep": sweep, "runs": [run.run_id for run in runs], "folder": str(root / "sweeps" / sweep)})
        return 0
    print_id(sweep)
    by = "" if found.prepared[0].loaded.job.metric else "--metric NAME "
    job = (job_of(runs[0]) or "").partition("_")[0]
    array = f", {runs[0].record().scheduler} job array {job}" if job else ""
    say(f"submitted {sweep}: {len(runs)} runs, {runs[0].run_id} to {runs[-1].run_id}{array}")
    say(f"  orch status {sweep}     shows all runs\n  orch best {by}{sweep}     ranks them")
    return 0


def _say_fields(found: Sweep) -> None:
    """Print which field of the job or profile each key of the sweep or search sets."""
    what = "sweep" if found.search is None else "search"
    for axis in found.axes:
        if axis.is_argument:
            say(f"{what}: {axis.word} is appended to the job's args")
        elif axis.word != axis.field:
            say(f"{what}: {axis.word} is short for the field {axis.field}")


def _delegate(root: Path, found: Sweep, *, as_json: bool) -> int:
    """Have another machine submit and supervise the runs of a sweep or search."""
    from orchestrator.operations.submission import delegate

    pointer = delegate.hand_over(root, found.plain, found.to_json(), say)
    if as_json:
        print_json({"sweep": pointer.run_id, "supervisor": pointer.host})
        return 0
    print_id(pointer.run_id)
    count = f"{len(found.points)} run{'s' * (len(found.points) != 1)}"
    what = f"{pointer.run_id}: {count}, which {pointer.host} supervises"
    say(f"submitted {what}: you can shut down this machine")
    say(f"  orch status {pointer.run_id}     shows all runs")
    return 0


def status_of(root: Path, sweep: str, *, as_json: bool) -> str:
    """Return the page of a sweep, as text or as JSON."""
    from orchestrator.cli.render import sweeps
    from orchestrator.looking.run import state_or_why_not
    from orchestrator.runs.searches import search_in
    from orchestrator.runs.sweeps import points_in

    runs = points_in(root, sweep)
    points = [(state_or_why_not(run), run.record().values) for run in runs]
    search = search_in(root, sweep)
    if as_json:
        return json.dumps(
            {
                "sweep": sweep,
                "state": sweeps.overall([state for state, _ in points]),
                "points": [{**state.to_json(), "values": dict(values)} for state, values in points],
            },
            indent=1,
        )
    said = sweeps.search_page_line(*search) if search is not None else ""
    return sweeps.sweep_page(sweep, points, time.time(), style, width_of(sys.stdout), search=said)


def logs_of(
    runs: list[RunDir], selection: Selection, tail: int | None, *, raw: bool, wanted: LineFilter | None = None
) -> int:
    """Print the selected logs of each run that has them, below a line with the run's id and values."""
    from orchestrator.cli.output import print_logs
    from orchestrator.cli.render import escapes
    from orchestrator.runs.files.logs import log_files

    for run in runs:
        if log_files(run, selection):
            values = run.record().values
            words = " ".join(f"{word}={value}" for word, value in values.items())
            show(style(escapes.one_line(f"=== {run.run_id} {words} ==="), "cyan"))
            print_logs(run, selection, tail, raw=raw, wanted=wanted)
    return 0


def cancel_all(root: Path, runs: list[RunDir], *, now: bool, as_json: bool) -> int:
    """Cancel the runs that have not ended, and print their remaining processes."""
    from orchestrator.cli.output import what_is_left
    from orchestrator.operations.runs import cancel_all
    from orchestrator.protocol.hostlist import by_words

    done = cancel_all(root, runs, now=now)
    going = [each for each in done if not each.state.is_final]
    bad = [(each, proof) for each in done for proof in each.proofs if not proof.is_clean]
    if as_json:
        print_json([{**each.state.to_json(), "proofs": [proof.__dict__ for proof in each.proofs]} for each in done])
    else:
        say(_cancelled_words(len(runs), [each.state for each in done], len(going)))
        for each in going:
            say(f"  {each.said}")
        for run_id, proofs in groupby(bad, key=lambda each: each[0].state.run_id):
            for line in by_words((proof.host, what_is_left(proof)) for _, proof in proofs):
                say(f"  {run_id} on {line}")
        if done and not going and not bad:
            say("  0 processes left")
    return 0 if all(each.is_proven for each in done) else EXIT_ORCH_FAILED


def _cancelled_words(runs: int, asked: Sequence[RunState], going: int) -> str:
    """Return a sentence with the number of runs that were cancelled and the number of runs that had ended before."""
    ended = sum(state.state == "cancelled" for state in asked)
    finished = runs - ended - going
    return f"cancelled {ended} run{'s' * (ended != 1)}{f', {finished} had already finished' if finished else ''}"


def wait_all(runs: list[RunDir], sweep: str, timeout: float | None, *, as_json: bool) -> int:
    """Wait for all runs of a sweep, and return the exit code for the worst outcome."""
    from orchestrator.cli.render import sweeps
    from orchestrator.cli.render.runs import left_lines
    from orchestrator.looking import run as looking

    states = looking.wait_all(runs, timeout)
    if as_json:
        print_json([state.to_json() for state in states])
    else:
        left = [line for state in states for line in left_lines(state)]
        say("\n".join([f"{sweep} {sweeps.overall(states)}: {sweeps.counted(states)}", *left]))
    return looking.exit_code_of_all(states)

"""Starts a request and reports it, for submit and run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from orchestrator.cli.awaiting import naming_who_is_awaited
from orchestrator.cli.group import print_json, say
from orchestrator.errors import EXIT_ORCH_FAILED


def start(root: Path, asked: Any, *, follow: bool, as_json: bool, dry_run: bool = False, check: bool = False,
          why: str | None = None, line_notes: tuple[str, ...] = ()) -> int:  # fmt: skip
    """Submit a request, or print its plan; follow the run to its end if wanted. Return the exit code.

    The first line names the ranks and the profile, unless `why` is None; `why` is the reason for a default profile.
    """
    from orchestrator.errors import OrchError
    from orchestrator.prepare import notes, prepare

    reason = f" ({why})" if why else ""
    try:
        prepared = prepare.prepare(root, asked)
    except OrchError:
        _say_all(*(f"note: {each}" for each in line_notes))
        raise
    first = "" if why is None else f"{notes.ranks_of_profile(prepared)}{reason}"
    _say_all(first, *(f"note: {each}" for each in line_notes), *notes.notes_on_request(prepared, asked.profile))
    if dry_run:
        return _show_dry_run(root, prepared, as_json=as_json, check=check)
    return _submit(root, prepared, as_json=as_json, follow=follow)


def _say_all(*lines: str) -> None:
    for line in filter(None, lines):
        say(line)


def _submit(root: Path, prepared: Any, *, as_json: bool, follow: bool) -> int:
    """Start a prepared request from this machine, or hand it to the machine that is to look after it."""
    from orchestrator.backends import kind_of
    from orchestrator.cli.render import runs as render
    from orchestrator.cli.render.escapes import one_line
    from orchestrator.operations.submission import delegate, submit
    from orchestrator.prepare import notes
    from orchestrator.runs.dependencies import was_queued
    from orchestrator.runs.summary import code_note, left_out_note

    if delegate.is_elsewhere(prepared):
        return _delegate(root, prepared, as_json=as_json, follow=follow)
    with naming_who_is_awaited(kind_of(vars(prepared.profile))) as elsewhere:
        run = submit.submit(root, prepared, elsewhere.hear)
    wait = submit.wait_for_places(run)
    on_supervisor = notes.note_on_wait() if wait else notes.note_on_supervisor(prepared, starts_later=was_queued(run))
    events = run.events()
    on_python = notes.note_on_python(prepared)
    for note in (on_python, code_note(events), one_line(left_out_note(events)), on_supervisor,
                 submit.note_on_profile(run), submit.note_on_queue(run)):  # fmt: skip
        if note:
            say(note)
    job = submit.job_of(run)
    submitted = f"submitted {run.run_id}{f' as {run.record().scheduler} job {job}' if job else ''}"
    if as_json and not follow:
        print_json({"run_id": run.run_id, "folder": str(run.path), **({"job": job} if job else {})})
    elif follow:
        from orchestrator.cli.follow import follow as follow_run

        say(f"{submitted}; Ctrl-C detaches, and the run continues")
        return follow_run(run, as_json=as_json)
    else:
        if not sys.stdout.isatty():
            click.echo(run.run_id)  # stdout has only the id, so that a script can read it
        say(f"{submitted}{f': {wait}' if wait else ''}\n{render.next_commands(run.run_id)}")
    return 0


def _show_dry_run(root: Path, prepared: Any, *, as_json: bool, check: bool) -> int:
    """Print the plan, and with `check` what sbatch reports about it. Return the exit code."""
    from orchestrator.cli.output import show_plan
    from orchestrator.prepare import prepare

    launch = prepare.shown_plan(root, prepared, asks=check)
    verdict = prepare.check(prepared, launch) if check else None
    show_plan(launch, as_json, prepared.environment, prepare.shipment(prepared), verdict)
    return EXIT_ORCH_FAILED if verdict is not None and verdict[0] == "fail" else 0


def _delegate(root: Path, prepared: Any, *, as_json: bool, follow: bool) -> int:
    """Let another machine submit the run and look after it."""
    from orchestrator.cli.render import runs as render
    from orchestrator.operations.submission import delegate

    pointer = delegate.hand_over(root, prepared, tell=say)
    if follow:
        say(f"submitted {pointer.run_id}, which {pointer.host} supervises; Ctrl-C detaches, and the run continues")
        delegate.reach(pointer, "", ["logs", pointer.run_id, "--follow"])
        return delegate.reach(pointer, "", ["wait", pointer.run_id])
    if as_json:
        print_json({"run_id": pointer.run_id, "supervisor": pointer.host})
        return 0
    if not sys.stdout.isatty():
        click.echo(pointer.run_id)
    say(f"submitted {pointer.run_id}, which {pointer.host} supervises: you can shut down this machine")
    say(render.next_commands(pointer.run_id))
    return 0

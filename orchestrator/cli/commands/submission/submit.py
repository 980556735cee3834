"""orch submit: start a run from a job and a profile. `orch run` also uses the function `prepare_and_submit`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli import complete
from orchestrator.cli.awaiting import naming_awaited_machines
from orchestrator.cli.group import orch, print_id, print_json, say, say_all
from orchestrator.cli.request import (
    TakesArguments,
    default_choice,
    profile_option,
    profile_or_default,
    request,
    request_options,
)
from orchestrator.errors import EXIT_ORCH_FAILED, OrchError, UsageError

if TYPE_CHECKING:
    from orchestrator.operations.submission.sweep import SearchOptions


@orch.command(cls=TakesArguments, epilog="Example: orch submit train.yaml -p lab -- --lr 0.1")
@click.argument("job", required=False, shell_complete=complete.jobs)
@profile_option
@request_options
@click.option(
    "--from",
    "again",
    metavar="RUN",
    shell_complete=complete.runs,
    help="Repeat a run: same job, profile and code (no JOB).",
)
@click.option("--follow", "-f", is_flag=True, help="Print rank 0's log until the end; Ctrl-C detaches.")
@click.option("--detach", "-d", is_flag=True, help="Return at once (the default).")
@click.option("--dry-run", "--dryrun", "dry_run", is_flag=True, help="Print the plan and commands; start nothing.")
@click.option("--check", is_flag=True, help="With --dry-run: also validate with sbatch --test-only.")
@click.option("--rehearse", is_flag=True, help="Run the profile's nodes and ranks on this machine.")
@click.option(
    "--after",
    metavar="RUN[:ok|:any]",
    shell_complete=complete.runs_and_sweeps,
    help="Start after that run or sweep has succeeded (:any: has ended).",
)
@click.option(
    "--sweep",
    "sweep",
    multiple=True,
    metavar="KEY=V,V|A..B",
    help="Grid sweep: one run per combination.",
)
@click.option(
    "--search",
    type=click.Choice(["tpe", "random"]),
    help="Adaptive search of the job's search.space (needs --trials).",
)
@click.option("--trials", type=click.IntRange(1), metavar="N", help="Number of runs of the search.")
@click.option("--stop", "stop_by", type=click.Choice(["asha"]), help="Stop bad trials of the search early.")
@click.option("--parallel", type=click.IntRange(1), metavar="N", help="At most N runs of the sweep at a time.")
@click.option(
    "--notify-on",
    multiple=True,
    type=click.Choice(["failed", "succeeded", "cancelled", "restarted", "hung"]),
    metavar="EVENT",
    help="Notify of failed, succeeded, cancelled, restarted or hung (repeatable).",
)
@click.option("--no-wait", is_flag=True, help="Refuse if the hosts' GPUs or slots are in use, instead of queueing.")
def submit(job: str | None, profile: str | None, as_json: bool, again: str | None, follow: bool, detach: bool,
           dry_run: bool, check: bool, rehearse: bool, after: str | None, sweep: tuple[str, ...],
           search: str | None, trials: int | None, stop_by: str | None, parallel: int | None,
           notify_on: tuple[str, ...], no_wait: bool, **shared: Any) -> int:  # fmt: skip
    """Submit a job: a YAML file, a shipped job, or a batch file.

    A batch file (#SBATCH, #PBS or #$ lines) runs as it is, on the first of its nodes. The command returns when the run
    was started or queued; --follow prints rank 0's log. Words after -- are appended to the job's args.
    """
    from orchestrator.runs.store import state_root
    from orchestrator.specs.documents.lookup import BATCH_SUFFIXES

    if check and not dry_run:
        raise UsageError(
            "--check needs --dry-run", "add --dry-run; without it, the scheduler validates the job when it is submitted"
        )
    _check(job, again, follow=follow, detach=detach, sweeps=bool(sweep) or search is not None, parallel=parallel)
    _check_search(search, trials, stop_by, sweeps=bool(sweep))
    why = None
    if job is not None and profile is None and not (sweep or search):
        choice = default_choice(job)
        profile, why = choice.profile, choice.why
    elif job is not None:
        profile = profile_or_default(profile, job)
    root = state_root()
    described: Any = job or ""
    if job is not None and job.endswith(BATCH_SUFFIXES) and Path(job).is_file():
        from orchestrator.operations.submission.batch_file import document_of_file

        if sweep or search or rehearse or shared["nodes"] or shared["nproc_per_node"]:
            raise UsageError(
                "a batch file that runs as it is decides its nodes and ranks itself, and can't be swept or rehearsed",
                f"write a job from it: orch init {Path(job).stem} {job}",
            )
        described = document_of_file(job)
    asked = request(described, profile or "", shared, rehearse=rehearse, again=again, waits=not no_wait, after=after)
    if notify_on:
        asked = replace(asked, notify_on=tuple(dict.fromkeys(notify_on)))
    if sweep or search is not None:
        from orchestrator.cli.sweeps import submit_points

        wanted = sweep or _search(search, trials, stop_by)
        return submit_points(root, asked, wanted, parallel, dry_run=dry_run, as_json=as_json)
    return prepare_and_submit(root, asked, follow=follow, as_json=as_json, dry_run=dry_run, check=check, why=why)


def _check(
    job: str | None, again: str | None, *, follow: bool, detach: bool, sweeps: bool,
    parallel: int | None,
) -> None:  # fmt: skip
    """Raise UsageError if the given options can't be used together."""
    if follow and detach:
        raise UsageError("--follow and --detach can't be used together", "leave one of them out")
    if (job is None) == (again is None):
        raise UsageError(
            "missing JOB (or --from RUN)" if job is None else "JOB and --from RUN can't be used together",
            "orch submit JOB -p PROFILE",
        )
    if sweeps and follow:
        raise UsageError("--follow follows one run, not a sweep", "follow one run of the sweep: orch logs -f SWEEP.0")
    if parallel is not None and not sweeps:
        raise UsageError("--parallel only applies to a sweep", "add --sweep KEY=VALUES")


def _search(sampler: str | None, trials: int | None, stop_by: str | None) -> SearchOptions:
    from orchestrator.operations.submission.sweep import SearchOptions
    from orchestrator.runs.searches import Sampler, Stop

    return SearchOptions(Sampler(str(sampler)), trials or 1, Stop(stop_by) if stop_by is not None else None)


def _check_search(search: str | None, trials: int | None, stop_by: str | None, *, sweeps: bool) -> None:
    """Raise UsageError if the options of a search are incomplete or can't be used together."""
    if search is None:
        if trials is not None or stop_by is not None:
            raise UsageError(
                f"{'--trials' if trials is not None else '--stop'} only applies to a search", "add --search tpe"
            )
        return
    if sweeps:
        raise UsageError(
            "--sweep and --search can't be used together",
            "put the key's values into `choices` of the job's `search.space`",
        )
    if trials is None:
        raise UsageError("--search needs the number of its trials", "add --trials 40")


# -- shared by submit and run


def prepare_and_submit(
    root: Path, asked: Any, *, follow: bool, as_json: bool, dry_run: bool = False, check: bool = False,
    why: str | None = None, line_notes: tuple[str, ...] = (),
) -> int:  # fmt: skip
    """Submit a request, or print its plan. With `follow`, follow the run to its end. Return the exit code.

    If `why` is not None, a line with the ranks and the profile is printed first. The line contains `why`, which is the
    reason for the profile if orch chose it, and otherwise empty.
    """
    from orchestrator.prepare import notes, prepare

    reason = f" ({why})" if why else ""
    try:
        prepared = prepare.prepare(root, asked)
    except OrchError:
        say_all(*(f"note: {each}" for each in line_notes))
        raise
    first = "" if why is None else f"{notes.ranks_of_profile(prepared)}{reason}"
    say_all(first, *(f"note: {each}" for each in line_notes), *notes.notes_on_request(prepared, asked.profile))
    if dry_run:
        return _show_dry_run(root, prepared, as_json=as_json, check=check)
    return _submit(root, prepared, as_json=as_json, follow=follow)


def _submit(root: Path, prepared: Any, *, as_json: bool, follow: bool) -> int:
    """Start a prepared request from this machine, or hand it over to the machine that the profile names."""
    from orchestrator.backends import kind_of
    from orchestrator.cli.render import runs as render
    from orchestrator.cli.render.escapes import one_line
    from orchestrator.operations.submission import submit
    from orchestrator.prepare import notes
    from orchestrator.runs.dependencies import was_queued
    from orchestrator.runs.summary import code_note, left_out_note

    if prepared.is_delegated:
        return _delegate(root, prepared, as_json=as_json, follow=follow)
    with naming_awaited_machines(kind_of(prepared.profile)) as elsewhere:
        run = submit.submit(root, prepared, elsewhere.hear)
    wait = submit.why_places_are_lacking(run)
    on_supervisor = notes.note_on_wait() if wait else notes.note_on_supervisor(prepared, starts_later=was_queued(run))
    events = run.events()
    say_all(
        notes.note_on_python(prepared),
        code_note(events),
        one_line(left_out_note(events)),
        on_supervisor,
        submit.note_on_profile(run),
        one_line(submit.note_on_scheduler(run)),
        submit.note_on_queue(run),
    )
    job = submit.job_of(run)
    submitted = f"submitted {run.run_id}{f' as {run.record().scheduler} job {job}' if job else ''}"
    if as_json and not follow:
        print_json({"run_id": run.run_id, "folder": str(run.path), **({"job": job} if job else {})})
    elif follow:
        from orchestrator.cli.follow import follow as follow_run

        say(f"{submitted}; Ctrl-C detaches, and the run continues")
        return follow_run(run, as_json=as_json)
    else:
        print_id(run.run_id)
        say(f"{submitted}{f': {wait}' if wait else ''}\n{render.next_commands(run.run_id)}")
    return 0


def _show_dry_run(root: Path, prepared: Any, *, as_json: bool, check: bool) -> int:
    """Print the plan. With `check`, also print the scheduler's answer to the plan. Return the exit code."""
    from orchestrator.backends import backend_of
    from orchestrator.cli.output import show_plan
    from orchestrator.prepare import prepare

    launch = prepare.shown_plan(root, prepared, contacts_login=check)
    verdict = backend_of(prepared.profile).advice.would_take(launch) if check else None
    show_plan(launch, as_json, prepared.environment, prepare.shipment(prepared), verdict)
    return EXIT_ORCH_FAILED if verdict is not None and verdict[0] == "fail" else 0


def _delegate(root: Path, prepared: Any, *, as_json: bool, follow: bool) -> int:
    """Have another machine submit and supervise the run."""
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
    print_id(pointer.run_id)
    say(f"submitted {pointer.run_id}, which {pointer.host} supervises: you can shut down this machine")
    say(render.next_commands(pointer.run_id))
    return 0

"""orch submit: from two YAML documents to a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from orchestrator.cli import complete
from orchestrator.cli.follow import follow as follow_run
from orchestrator.cli.group import orch, print_json, say
from orchestrator.cli.output import show_plan
from orchestrator.cli.request import request, request_options
from orchestrator.errors import EXIT_ORCH_FAILED, UsageError


@orch.command()
@click.argument("job", required=False, shell_complete=complete.jobs)
@click.option("--profile", "-p", metavar="PROFILE", shell_complete=complete.profiles, help="A profile's name or file.")
@request_options
@click.option(
    "--from",
    "again",
    metavar="RUN",
    shell_complete=complete.runs,
    help="Repeat a run: its job, profile and code; takes no JOB.",
)
@click.option("--follow", "-f", is_flag=True, help="Print rank 0's log and wait; Ctrl-C detaches.")
@click.option("--detach", "-d", is_flag=True, help="Return at once (the default).")
@click.option("--dry-run", "--dryrun", "dry_run", is_flag=True, help="Print what would be sent; start nothing.")
@click.option(
    "--check", is_flag=True, help="With --dry-run: ask Slurm whether it would take the job (sbatch --test-only)."
)
@click.option("--rehearse", is_flag=True, help="Run the profile's nodes and ranks on this machine.")
@click.option(
    "--after",
    metavar="RUN[:ok|:any]",
    shell_complete=complete.runs_and_sweeps,
    help="Start when that run or sweep has succeeded; with :any, has ended.",
)
@click.option(
    "--sweep",
    "sweep",
    multiple=True,
    metavar="KEY=V,V|A..B",
    help="A run for each value; of several: each combination.",
)
@click.option("--parallel", type=click.IntRange(1), metavar="N", help="With --sweep: so many runs at a time.")
@click.option("--wait-for-gpus", is_flag=True, help="Wait for GPUs that other runs hold, instead of refusing.")
def submit(job: str | None, profile: str | None, as_json: bool, again: str | None, follow: bool, detach: bool,
           dry_run: bool, check: bool, rehearse: bool, after: str | None, sweep: tuple[str, ...],
           parallel: int | None, wait_for_gpus: bool, **shared: Any) -> int:  # fmt: skip
    """Submit JOB (a YAML file or a shipped job's name) to a profile, or repeat a run."""
    from orchestrator.cli.render import runs as render
    from orchestrator.operations import delegate, submit
    from orchestrator.prepare import prepare
    from orchestrator.runs.store import state_root
    from orchestrator.runs.summary import code_note

    if check and not dry_run:
        raise UsageError("--check belongs to --dry-run", "a submit asks Slurm anyway")
    _check(job, profile, again, follow=follow, detach=detach, sweeps=bool(sweep), parallel=parallel)
    root = state_root()
    asked = request(job or "", profile or "", shared, rehearse=rehearse, again=again, waits=wait_for_gpus, after=after)
    if sweep:
        from orchestrator.cli.sweeps import submit_sweep

        return submit_sweep(root, asked, sweep, parallel, dry_run=dry_run, as_json=as_json)
    prepared = prepare.prepare(root, asked)
    for note in submit.notes_on_request(prepared, profile or ""):
        say(note)
    if dry_run:
        return show_dry_run(root, prepared, as_json=as_json, check=check)
    if delegate.is_elsewhere(prepared):
        return delegate_run(root, prepared, as_json=as_json, follow=follow)
    run = submit.submit(root, prepared)
    notes = (code_note(run.events()), submit.note_on_supervisor(prepared), submit.note_on_queue(run))
    for note in notes:
        if note:
            say(note)
    if as_json and not follow:
        print_json({"run_id": run.run_id, "folder": str(run.path)})
    elif follow:
        say(f"submitted {run.run_id}; Ctrl-C detaches, and the run goes on")
        return follow_run(run, as_json=as_json)
    else:
        if not sys.stdout.isatty():
            click.echo(run.run_id)  # alone on stdout, so that a script can take it
        say(f"submitted {run.run_id}\n{render.next_commands(run.run_id)}")
    return 0


def show_dry_run(root: Path, prepared: Any, *, as_json: bool, check: bool) -> int:
    """Print the plan, and with `check` what Slurm says to it; return the exit code."""
    from orchestrator.prepare import prepare

    launch = prepare.plan_for(root, prepared)
    verdict = prepare.check(prepared, launch) if check else None
    show_plan(launch, as_json, prepared.environment, prepare.shipment(prepared), verdict)
    return EXIT_ORCH_FAILED if verdict is not None and verdict[0] == "fail" else 0


def delegate_run(root: Path, prepared: Any, *, as_json: bool, follow: bool) -> int:
    """Have another machine submit and look after the run."""
    from orchestrator.cli.render import runs as render
    from orchestrator.operations import delegate

    pointer = delegate.hand_over(root, prepared)
    if follow:
        say(f"submitted {pointer.run_id}, which {pointer.host} looks after; Ctrl-C detaches, and the run goes on")
        delegate.reach(pointer, "", ["logs", pointer.run_id, "--follow"])
        return delegate.reach(pointer, "", ["wait", pointer.run_id])
    if as_json:
        print_json({"run_id": pointer.run_id, "supervisor": pointer.host})
        return 0
    if not sys.stdout.isatty():
        click.echo(pointer.run_id)
    say(f"submitted {pointer.run_id}, which {pointer.host} looks after: this machine may go off")
    say(render.next_commands(pointer.run_id))
    return 0


def _check(
    job: str | None, profile: str | None, again: str | None, *, follow: bool, detach: bool, sweeps: bool,
    parallel: int | None,
) -> None:  # fmt: skip
    """Raise UsageError for options that don't go together."""
    if follow and detach:
        raise UsageError("--follow and --detach exclude each other", "leave one of them out")
    if (job is None) == (again is None):
        raise UsageError("say what to run: a JOB, or --from RUN, and not both", "orch submit JOB --profile PROFILE")
    if again is None and profile is None:
        raise UsageError(
            "the option --profile is missing", "say where to run: --profile local; orch profiles lists them"
        )
    if sweeps and follow:
        raise UsageError("--follow follows one run", "follow a point of the sweep: orch logs -f SWEEP.0")
    if parallel is not None and not sweeps:
        raise UsageError("--parallel is for a sweep", "add --sweep KEY=VALUES")

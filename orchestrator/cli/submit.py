"""submit and plan: from two YAML documents to a run, or to a look at what it would be."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from orchestrator.cli.follow import follow as follow_run
from orchestrator.cli.group import orch, print_json, say
from orchestrator.errors import EXIT_ORCH_FAILED, UsageError

# The rest is imported where it is used: `orch status` must not wait for what it doesn't need.
# ruff: noqa: PLC0415


def request_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.option("--set", "sets", multiple=True, metavar="job.A.B=V", help="Override a field of job or profile."),
        click.option(
            "--env", "env", multiple=True, metavar="NAME[=VALUE]", help="Set a variable, or take the shell's."
        ),
        click.option("--nodes", type=click.IntRange(1), help="This many nodes instead of the profile's."),
        click.option("--nproc-per-node", metavar="N|auto", help="This many ranks a node instead of the profile's."),
        click.option("--name", help="The run's name; the job's by default."),
        click.option("--resume", metavar="RUN", help="Start from another run's newest checkpoint."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def request(
    job: str,
    profile: str,
    shared: dict[str, Any],
    *,
    rehearse: bool = False,
    again: str | None = None,
    waits: bool = False,
    after: str | None = None,
) -> Any:
    """What the options that submit and plan share ask for."""
    from orchestrator.preparing import Request

    nproc = shared["nproc_per_node"]
    flags = {
        "job.name": shared["name"],
        "profile.nodes": shared["nodes"],
        "profile.nproc_per_node": int(nproc) if nproc is not None and nproc.isdecimal() else nproc,
    }
    return Request(job, profile, shared["sets"], flags, shared["env"], shared["resume"], rehearse, waits, again, after)


@orch.command()
@click.argument("job", required=False)
@click.option("--profile", "-p", metavar="PROFILE", help="A profile's name or file.")
@request_options
@click.option("--from", "again", metavar="RUN", help="Repeat a run: its job, profile and code; takes no JOB.")
@click.option("--follow", "-f", is_flag=True, help="Print rank 0's log and wait; Ctrl-C detaches.")
@click.option("--detach", "-d", is_flag=True, help="Return at once (the default).")
@click.option("--dry-run", "--dryrun", "dry_run", is_flag=True, help="Print what would be sent; start nothing.")
@click.option(
    "--check", is_flag=True, help="With --dry-run: ask Slurm whether it would take the job (sbatch --test-only)."
)
@click.option("--rehearse", is_flag=True, help="Run the profile's nodes and ranks on this machine.")
@click.option(
    "--after", metavar="RUN[:ok|:any]", help="Start when that run or sweep has succeeded; with :any, has ended."
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
    from orchestrator import controller, elsewhere, preparing, render
    from orchestrator.runrecord import code_note
    from orchestrator.store import state_root

    if check and not dry_run:
        raise UsageError("--check belongs to --dry-run", "a submit asks Slurm anyway")
    _check(job, profile, again, follow=follow, detach=detach, sweeps=bool(sweep), parallel=parallel)
    root = state_root()
    asked = request(job or "", profile or "", shared, rehearse=rehearse, again=again, waits=wait_for_gpus, after=after)
    if sweep:
        from orchestrator.cli.sweeps import submit_sweep

        return submit_sweep(root, asked, sweep, parallel, dry_run=dry_run, as_json=as_json)
    prepared = preparing.prepare(root, asked)
    if dry_run:
        return show_dry_run(root, prepared, as_json=as_json, check=check)
    if elsewhere.is_elsewhere(prepared):
        return hand_over(root, prepared, as_json=as_json, follow=follow)
    run = controller.submit(root, prepared)
    notes = (code_note(run.events()), controller.note_on_supervisor(prepared), controller.note_on_queue(run))
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
    """Print the plan, and with `check` what Slurm says to it; the exit code."""
    from orchestrator import preparing

    launch = preparing.plan_for(root, prepared)
    verdict = preparing.check(prepared, launch) if check else None
    show_plan(launch, as_json, prepared.environment.secrets, verdict)
    return EXIT_ORCH_FAILED if verdict is not None and verdict[0] == "fail" else 0


def hand_over(root: Path, prepared: Any, *, as_json: bool, follow: bool) -> int:
    """Have another machine submit and look after the run."""
    from orchestrator import elsewhere, render

    pointer = elsewhere.hand_over(root, prepared)
    if follow:
        say(f"submitted {pointer.run_id}, which {pointer.host} looks after; Ctrl-C detaches, and the run goes on")
        elsewhere.reach(pointer, "", ["logs", pointer.run_id, "--follow"])
        return elsewhere.reach(pointer, "", ["wait", pointer.run_id])
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
    """UsageError for options that don't go together."""
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


def plan_json(launch: Any) -> dict[str, Any]:
    """The plan and its ranks as JSON types."""
    from orchestrator.plan import ranks_of

    return {**launch.to_json(), "ranks": [{**row.__dict__, "argv": list(row.argv)} for row in ranks_of(launch)]}


def show_plan(launch: Any, as_json: bool, secrets: dict[str, str], verdict: tuple[str, str, str] | None = None) -> None:
    from orchestrator import render
    from orchestrator.environment import mask

    if as_json:
        checked = {"check": dict(zip(("verdict", "value", "hint"), verdict, strict=True))} if verdict else {}
        text = json.dumps({**plan_json(launch), **checked}, indent=1)
    else:
        text = render.plan_page(launch, commands=True) + (f"\n\n{render.check_line(*verdict)}" if verdict else "")
    click.echo(mask(text, secrets))


@orch.command()
@click.argument("job")
@click.option("--profile", "-p", "profiles", multiple=True, required=True, metavar="PROFILE", help="One or two.")
@request_options
def plan(job: str, profiles: tuple[str, ...], as_json: bool, **shared: Any) -> int:
    """Show the ranks of JOB under a profile, or what differs between two."""
    from orchestrator import preparing, render
    from orchestrator.plan import differences
    from orchestrator.store import state_root

    if len(profiles) > 2:
        raise UsageError(f"{len(profiles)} profiles were given", "compare two at a time")
    root = state_root()
    plans = [preparing.plan_for(root, preparing.prepare(root, request(job, profile, shared))) for profile in profiles]
    if as_json:
        print_json([plan_json(launch) for launch in plans] if len(plans) > 1 else plan_json(plans[0]))
        return 0
    for launch in plans:
        click.echo(render.plan_page(launch, commands=False))
        click.echo()
    if len(plans) == 2:
        click.echo(render.differences_page(profiles[0], profiles[1], differences(*plans)))
    return 0

"""submit and plan: from two YAML documents to a run, or to a look at what it would be."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from orchestrator.cli.follow import follow as follow_run
from orchestrator.cli.group import orch, print_json, say
from orchestrator.errors import UsageError

# The rest is imported where it is used: `orch status` must not wait for what it doesn't need.
# ruff: noqa: PLC0415


def request_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.option("--set", "sets", multiple=True, metavar="job.A.B=V", help="Override a field of job or profile."),
        click.option(
            "--env", "env", multiple=True, metavar="NAME[=VALUE]", help="Set a variable, or take the shell's."
        ),
        click.option("--name", help="The run's name; the job's by default."),
        click.option("--resume", metavar="RUN", help="Start from another run's newest checkpoint."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def request(job: str, profile: str, sets: tuple[str, ...], env: tuple[str, ...], name: str | None,
             resume: str | None, rehearse: bool = False) -> Any:  # fmt: skip
    from orchestrator.controller import Request

    flags = {"job.name": name} if name else {}
    return Request(job, profile, sets, flags, env, resume, rehearse)


@orch.command()
@click.argument("job")
@click.option("--profile", "-p", required=True, metavar="PROFILE", help="A profile's name or file.")
@request_options
@click.option("--follow", "-f", is_flag=True, help="Print rank 0's log and wait; Ctrl-C detaches.")
@click.option("--detach", "-d", is_flag=True, help="Return at once (the default).")
@click.option("--dry-run", "--dryrun", "dry_run", is_flag=True, help="Print what would be sent; start nothing.")
@click.option("--rehearse", is_flag=True, help="Run the profile's nodes and ranks on this machine.")
def submit(job: str, profile: str, sets: tuple[str, ...], env: tuple[str, ...], name: str | None, resume: str | None,
           as_json: bool, follow: bool, detach: bool, dry_run: bool, rehearse: bool) -> int:  # fmt: skip
    """Submit JOB (a YAML file or a shipped job's name) to a profile."""
    from orchestrator import controller, render
    from orchestrator.store import state_root

    if follow and detach:
        raise UsageError("--follow and --detach exclude each other", "leave one of them out")
    root = state_root()
    prepared = controller.prepare(root, request(job, profile, sets, env, name, resume, rehearse))
    if dry_run:
        show_plan(controller.plan_for(root, prepared), as_json, prepared.environment.secrets)
        return 0
    run = controller.submit(root, prepared)
    if as_json and not follow:
        print_json({"run_id": run.run_id, "folder": str(run.path)})
    elif follow:
        say(f"submitted {run.run_id}; Ctrl-C detaches, and the run goes on")
        return follow_run(run, as_json=as_json)
    else:
        say(f"submitted {run.run_id}")
        click.echo(render.next_commands(run.run_id))
    return 0


def show_plan(launch: Any, as_json: bool, secrets: dict[str, str]) -> None:
    from orchestrator import render
    from orchestrator.environment import mask
    from orchestrator.plan import ranks_of

    if as_json:
        ranks = [{**row.__dict__, "argv": list(row.argv)} for row in ranks_of(launch)]
        text = json.dumps({**launch.to_json(), "ranks": ranks}, indent=1)
    else:
        text = render.plan_page(launch, commands=True)
    click.echo(mask(text, secrets))


@orch.command()
@click.argument("job")
@click.option("--profile", "-p", "profiles", multiple=True, required=True, metavar="PROFILE", help="One or two.")
@request_options
def plan(job: str, profiles: tuple[str, ...], sets: tuple[str, ...], env: tuple[str, ...], name: str | None,
         resume: str | None, as_json: bool) -> int:  # fmt: skip
    """Show the ranks of JOB under a profile, or what differs between two."""
    from orchestrator import controller, render
    from orchestrator.plan import differences
    from orchestrator.store import state_root

    if len(profiles) > 2:
        raise UsageError(f"{len(profiles)} profiles were given", "compare two at a time")
    root = state_root()
    plans = [
        controller.plan_for(root, controller.prepare(root, request(job, profile, sets, env, name, resume)))
        for profile in profiles
    ]
    if as_json:
        print_json([launch.to_json() for launch in plans] if len(plans) > 1 else plans[0].to_json())
        return 0
    for launch in plans:
        click.echo(render.plan_page(launch, commands=False))
        click.echo()
    if len(plans) == 2:
        click.echo(render.differences_page(profiles[0], profiles[1], differences(*plans)))
    return 0

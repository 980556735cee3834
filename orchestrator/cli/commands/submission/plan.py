"""orch plan: show the ranks of a job under a profile, or the differences between two profiles."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch, say_all, show
from orchestrator.cli.output import plan_json
from orchestrator.cli.request import TakesArguments, profile_or_default, request, request_options
from orchestrator.errors import UsageError


@orch.command(cls=TakesArguments, epilog="Example: orch plan train.yaml -p local -p lab")
@click.argument("job", shell_complete=complete.jobs)
@click.option(
    "--profile",
    "-p",
    "profiles",
    multiple=True,
    metavar="PROFILE",
    shell_complete=complete.profiles,
    help="Profile to plan for; give two to compare them.",
)
@request_options
def plan(job: str, profiles: tuple[str, ...], as_json: bool, **shared: Any) -> int:
    """Show every rank of a job, or how two profiles differ."""
    from orchestrator.cli.render import plans
    from orchestrator.prepare import notes, prepare
    from orchestrator.runs.store import state_root
    from orchestrator.specs.plan import differences

    if len(profiles) > 2:
        raise UsageError(
            f"orch plan takes one or two profiles, and {len(profiles)} were given", "compare two at a time"
        )
    profiles = profiles or (profile_or_default(None, job),)
    root = state_root()
    asked = [replace(request(job, profile, shared), plans=True) for profile in profiles]
    prepared = [prepare.prepare(root, each) for each in asked]
    say_all(*(note for pair in zip(prepared, asked, strict=True) for note in notes.notes_on_hidden_files(*pair)))
    launches, masked = [prepare.shown_plan(root, each) for each in prepared], prepared[0].environment.masked
    if as_json:
        found = [plan_json(launch) for launch in launches]
        click.echo(masked(json.dumps(found if len(found) > 1 else found[0], indent=1)))
        return 0
    for launch, each in zip(launches, prepared, strict=True):
        page = [plans.plan_page(launch, commands=False), *plans.here_lines(prepare.programs_here(each))]
        show(masked("\n".join([*page, ""])))
    if len(launches) == 2:
        show(masked(plans.differences_page(profiles[0], profiles[1], differences(*launches))))
    return 0

"""gc: what crashed runs left behind."""

from __future__ import annotations

import click

from orchestrator.cli.group import orch, print_json
from orchestrator.errors import EXIT_ORCH_FAILED

# The rest is imported where it is used: `orch status` must not wait for what it doesn't need.
# ruff: noqa: PLC0415


@orch.command()
@click.option("--dry-run", is_flag=True, help="Only list what would be done.")
@click.option("--unknown", is_flag=True, help="Also end processes whose run this state folder doesn't know.")
@click.option("--profile", "-p", metavar="PROFILE", help="On the hosts of this profile, not on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def gc(dry_run: bool, unknown: bool, profile: str | None, as_json: bool) -> int:
    """End processes and remove files that crashed runs left behind; live runs are not touched."""
    from orchestrator.residue import collect_garbage
    from orchestrator.store import state_root

    if profile is None:
        found = collect_garbage(state_root(), dry_run=dry_run, unknown=unknown)
    else:
        from orchestrator.load import load_profile
        from orchestrator.remnants import sweep_hosts

        found = sweep_hosts(state_root(), load_profile(profile), dry_run=dry_run, unknown=unknown)
    if as_json:
        print_json([each.to_json() for each in found])
    for each in [] if as_json else found:
        click.echo(f"{each.done}: {each.kind} {each.what}: {each.why}")
    if not found and not as_json:
        click.echo("nothing was left behind")
    return EXIT_ORCH_FAILED if any("could not be ended" in each.why for each in found) else 0

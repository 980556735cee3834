"""orch gc: remove the processes and files that ended and crashed runs have left."""

from __future__ import annotations

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch, print_json, show
from orchestrator.errors import EXIT_ORCH_FAILED


@orch.command(epilog="Example: orch gc --dry-run")
@click.option("--dry-run", is_flag=True, help="List the leftovers, and remove nothing.")
@click.option("--unknown", is_flag=True, help="Also end processes of runs that are not in this state folder.")
@click.option(
    "--profile",
    "-p",
    metavar="PROFILE",
    shell_complete=complete.profiles,
    help="Clean up this profile's hosts instead of this machine.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def gc(dry_run: bool, unknown: bool, profile: str | None, as_json: bool) -> int:
    """Remove the processes and files that crashed runs left.

    Live runs are not touched.
    """
    from orchestrator.operations.gc import collect_garbage
    from orchestrator.runs.store import state_root

    if profile is None:
        found = collect_garbage(state_root(), dry_run=dry_run, unknown=unknown)
    else:
        from orchestrator.operations.gc import collect_on_machines
        from orchestrator.specs.documents.loader import load_profile

        found = collect_on_machines(state_root(), load_profile(profile), dry_run=dry_run, unknown=unknown)
    if as_json:
        print_json([each.to_json() for each in found])
    for each in [] if as_json else found:
        show(f"{each.done}: {each.kind} {each.what}: {each.why}")
    if not found and not as_json:
        show("nothing was left behind")
    return EXIT_ORCH_FAILED if any("could not be ended" in each.why for each in found) else 0

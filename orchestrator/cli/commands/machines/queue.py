"""orch queue: list all users' runs on the hosts of a profile."""

from __future__ import annotations

import click

from orchestrator.cli.group import orch
from orchestrator.cli.request import profile_option, profile_or_default
from orchestrator.cli.shared_runs import show_shared_runs


@orch.command(epilog="Example: orch queue -p lab")
@profile_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def queue(profile: str | None, as_json: bool) -> int:
    """Show the queue for the GPUs of an ssh profile's hosts.

    Lists the runs of all users on these hosts: first the runs that hold GPUs or slots, then the waiting runs in the
    order in which they will start.
    """
    return show_shared_runs(profile_or_default(profile), as_json=as_json)

"""orch queue: list all users' runs on the hosts of a profile."""

from __future__ import annotations

import click

from orchestrator.cli.group import orch, print_json, say, show
from orchestrator.cli.request import profile_option, profile_or_default
from orchestrator.errors import EXIT_ORCH_FAILED


@orch.command(epilog="Example: orch queue -p lab")
@profile_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def queue(profile: str | None, as_json: bool) -> int:
    """Show the queue for the GPUs of an ssh profile's hosts.

    Lists the runs of all users on these hosts: first the runs that hold GPUs or slots, then the waiting runs in the
    order in which they will start.
    """
    return show_shared_runs(profile, as_json=as_json)


def show_shared_runs(profile: str | None, *, as_json: bool) -> int:
    """Print all users' runs on the hosts of a profile, or of the default profile, and return the exit code."""
    import time

    from orchestrator.cli.render.results import shared_runs_page
    from orchestrator.operations.doctor import shared_runs
    from orchestrator.specs.documents.loader import load_profile

    runs, problems = shared_runs(load_profile(profile_or_default(profile)))
    if as_json:
        print_json([each.to_json() for each in runs])
    else:
        show(shared_runs_page(runs, time.time()))
    for problem in problems:
        say(problem)
    return EXIT_ORCH_FAILED if problems else 0

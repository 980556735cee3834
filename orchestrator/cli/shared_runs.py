"""Prints all users' runs on the hosts of a profile, for `orch queue` and `orch status --all-users`."""

from __future__ import annotations

from orchestrator.cli.group import print_json, say, show
from orchestrator.errors import EXIT_ORCH_FAILED


def show_shared_runs(profile: str, *, as_json: bool) -> int:
    """Print all users' runs on the hosts of a profile, and return the exit code."""
    import time

    from orchestrator.cli.render.shared_hosts import shared_runs_page
    from orchestrator.operations.shared_hosts import shared_runs
    from orchestrator.specs.documents.loader import load_profile

    runs, problems = shared_runs(load_profile(profile))
    if as_json:
        print_json([each.to_json() for each in runs])
    else:
        show(shared_runs_page(runs, time.time()))
    for problem in problems:
        say(problem)
    return EXIT_ORCH_FAILED if problems else 0

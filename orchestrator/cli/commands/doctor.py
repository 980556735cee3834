"""orch doctor: checks of every machine of a profile."""

from __future__ import annotations

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch, print_json, say, show, style
from orchestrator.errors import EXIT_ORCH_FAILED


@orch.command()
@click.option(
    "--profile",
    "-p",
    required=True,
    metavar="PROFILE",
    shell_complete=complete.profiles,
    help="A profile's name or file.",
)
@click.option("--on-node", is_flag=True, help="Of a slurm profile, also what a short job finds on a node.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(profile: str, on_node: bool, as_json: bool) -> int:
    """Check a profile's machines (SSH, Python, torch, disk, ports) or its Slurm; each failure with its remedy."""
    from orchestrator.backends.base import Level
    from orchestrator.cli.render import results
    from orchestrator.operations.doctor import examine
    from orchestrator.specs.loader import load_profile

    loaded = load_profile(profile)
    checks = examine(loaded, on_node=on_node)
    if as_json:
        print_json([check.to_json() for check in checks])
    else:
        show(results.doctor_page(checks, style))
        if loaded.nodes > 1:
            say("note: what torch itself sends between nodes is neither encrypted nor authenticated: docs/security.md")
    return EXIT_ORCH_FAILED if any(check.level == Level.FAIL for check in checks) else 0

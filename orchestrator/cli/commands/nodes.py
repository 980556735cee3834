"""orch nodes: who holds what on the machines of a profile."""

from __future__ import annotations

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch, print_json, show, style
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
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def nodes(profile: str, as_json: bool) -> int:
    """Show the machines of a profile and who holds their GPUs or slots; of a slurm profile, the partitions."""
    from orchestrator.cli.render import results
    from orchestrator.operations.doctor import holdings
    from orchestrator.specs.loader import load_profile

    found = holdings(load_profile(profile))
    if as_json:
        print_json(found)
    else:
        show(results.partitions_page(found) if found and "limit" in found[0] else results.nodes_page(found, style))
    return EXIT_ORCH_FAILED if any("problem" in each for each in found) else 0

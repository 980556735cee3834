"""doctor and nodes: the machines of a profile, before anything is started on them."""

from __future__ import annotations

import click

from orchestrator.cli.group import orch, print_json, style
from orchestrator.errors import EXIT_ORCH_FAILED

# The rest is imported where it is used: `orch status` must not wait for what it doesn't need.
# ruff: noqa: PLC0415


@orch.command()
@click.option("--profile", "-p", required=True, metavar="PROFILE", help="A profile's name or file.")
@click.option("--on-node", is_flag=True, help="Of a slurm profile, also what a short job finds on a node.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(profile: str, on_node: bool, as_json: bool) -> int:
    """Check a profile's machines (SSH, Python, torch, disk, ports) or its Slurm; each failure with its remedy."""
    from orchestrator import pages
    from orchestrator.doctor import FAIL, examine
    from orchestrator.load import load_profile

    checks = examine(load_profile(profile), on_node=on_node)
    if as_json:
        print_json([check.to_json() for check in checks])
    else:
        click.echo(pages.doctor_page(checks, style))
    return EXIT_ORCH_FAILED if any(check.verdict == FAIL for check in checks) else 0


@orch.command()
@click.option("--profile", "-p", required=True, metavar="PROFILE", help="A profile's name or file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def nodes(profile: str, as_json: bool) -> int:
    """Show the machines of a profile and who holds their GPUs or slots; of a slurm profile, the partitions."""
    from orchestrator import pages
    from orchestrator.doctor import holdings
    from orchestrator.load import load_profile

    found = holdings(load_profile(profile))
    if as_json:
        print_json(found)
    else:
        click.echo(pages.partitions_page(found) if found and "limit" in found[0] else pages.nodes_page(found, style))
    return EXIT_ORCH_FAILED if any("problem" in each for each in found) else 0

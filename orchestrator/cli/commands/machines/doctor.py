"""orch doctor: checks of every machine of a profile."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from orchestrator.cli.awaiting import naming_who_is_awaited
from orchestrator.cli.group import orch, print_json, say, show, style, width_of
from orchestrator.cli.request import profile_option, profile_or_default
from orchestrator.errors import EXIT_ORCH_FAILED, UsageError


@orch.command(epilog="Example: orch doctor -p lab")
@profile_option
@click.option("--on-node", is_flag=True, help="Slurm: also run a short test job on a compute node.")
@click.option("--bench", is_flag=True, help="Also measure all-reduce, inside nodes and between them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(profile: str | None, on_node: bool, bench: bool, as_json: bool) -> int:
    """Check a profile's machines; a remedy for each failure.

    SSH: keys, Python, torch, disk, ports between the nodes. Slurm: its programs, partition and limits.
    """
    from orchestrator.backends import kind_of
    from orchestrator.backends.base import Level
    from orchestrator.cli.render import results
    from orchestrator.operations import bandwidth
    from orchestrator.operations.doctor import examine
    from orchestrator.runs.store import state_root
    from orchestrator.specs.documents.loader import load_profile

    name = profile_or_default(profile)
    loaded = load_profile(name)
    try:
        with naming_who_is_awaited(kind_of(dict(loaded))):
            checks = examine(loaded, on_node=on_node)
    except UsageError:  # a local profile without GPUs, of which there is nothing to check
        if not bench:
            raise
        checks = []
    if checks and not as_json:
        show(results.doctor_page(checks, style, width_of(sys.stdout)))
    fails = any(check.level == Level.FAIL for check in checks)
    figures = bandwidth.measure(state_root(), name, say) if bench and not fails else []
    if as_json:
        print_json([*(check.to_json() for check in checks), *map(asdict, figures)])
    else:
        for figure in figures:
            show(bandwidth.in_words(figure))
        if loaded.nodes > 1:
            say("note: what torch itself sends between nodes is neither encrypted nor authenticated: docs/security.md")
    return EXIT_ORCH_FAILED if fails else 0

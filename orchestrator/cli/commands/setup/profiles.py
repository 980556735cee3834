"""orch profiles: list the known profiles, and their mistakes."""

from __future__ import annotations

from typing import Any

import click

from orchestrator.cli.group import orch, print_json, show
from orchestrator.errors import OrchError


@orch.command(epilog="Example: orch profiles")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def profiles(as_json: bool) -> int:
    """List the profiles that --profile finds by name."""
    from pathlib import Path

    from orchestrator.cli.render import tables
    from orchestrator.specs.documents.loader import load_profile
    from orchestrator.specs.documents.lookup import known_profiles

    rows: list[list[Any]] = []
    for name, path, where in known_profiles(Path.cwd()):
        try:
            found = load_profile(path)
            nproc = list(found.nproc_per_node) if isinstance(found.nproc_per_node, tuple) else found.nproc_per_node
            rows.append([name, found.kind, found.nodes, nproc, found.runtime, where])
        except OrchError as error:
            rows.append([name, "broken", None, None, None, error.message.splitlines()[0]])
    header = ["PROFILE", "KIND", "NODES", "RANKS/NODE", "RUNTIME", "WHERE"]
    if as_json:
        keys = ["profile", "kind", "nodes", "nproc_per_node", "runtime", "where"]
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
    else:
        show(tables.table(header, [["-" if cell is None else str(cell) for cell in row] for row in rows]))
    return 0

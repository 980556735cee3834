"""orch shell: a shell on a node of a run, or in its container."""

from __future__ import annotations

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch, say
from orchestrator.cli.terminal import become, has_terminal


@orch.command(context_settings={"ignore_unknown_options": True})
@click.argument("run", shell_complete=complete.runs)
@click.option("--node", default=0, show_default=True, type=click.IntRange(0), metavar="N", help="On this node.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND...]")
def shell(run: str, node: int, command: tuple[str, ...]) -> None:
    """Open a shell in the container of a node of a running RUN, or on the node; or run COMMAND there."""
    from orchestrator.operations.shell import shell as way_to
    from orchestrator.runs.store import find_run, state_root

    way = way_to(find_run(state_root(), run), node, command, terminal=has_terminal())
    if not command:
        say(f"{way.where}; exit leaves it, and the run goes on")
    become(way.argv)

"""orch shell: open a shell on a run's node or in its container."""

from __future__ import annotations

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch, say
from orchestrator.cli.terminal import become, has_terminal


@orch.command(context_settings={"ignore_unknown_options": True}, epilog="Example: orch shell last nvidia-smi")
@click.argument("run", shell_complete=complete.runs)
@click.option("--node", default=0, show_default=True, type=click.IntRange(0), metavar="N", help="Node number.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND...]")
def shell(run: str, node: int, command: tuple[str, ...]) -> None:
    """Open a shell on a run's node, or in its container.

    With COMMAND, run that instead.
    """
    from orchestrator.operations.debugging.shell import shell as way_to
    from orchestrator.runs.store import find_run, state_root

    way = way_to(find_run(state_root(), run), node, command, terminal=has_terminal())
    if way.note:
        say(way.note)
    if not command:
        say(f"{way.where}; exit ends this shell" + (", and the run continues" if way.is_live else ""))
    become(way.argv)

"""orch export: write a run in the form of torchrun, accelerate or safetensors."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch, say


@orch.command(epilog="Example: orch export torchrun last")
@click.argument("what", type=click.Choice(["torchrun", "accelerate", "safetensors"]), metavar="FORMAT")
@click.argument("run", shell_complete=complete.runs)
@click.option(
    "--node", default=0, show_default=True, metavar="N", help="accelerate: node to write the config file for."
)
@click.option("--port", default=29500, show_default=True, metavar="N", help="Rendezvous port on node 0.")
@click.option(
    "--checkpoint",
    default="latest",
    show_default=True,
    metavar="best|latest|STEP",
    help="safetensors: checkpoint to export.",
)
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), metavar="FILE", help="Write to FILE instead of stdout."
)
def export(what: str, run: str, node: int, port: int, checkpoint: str, output: Path | None) -> int:
    """Write torchrun commands, an accelerate config, or weights.

    FORMAT is torchrun, accelerate or safetensors (a file of the weights).
    """
    from orchestrator.errors import UsageError
    from orchestrator.node.system.private import as_the_user
    from orchestrator.operations import export as exports
    from orchestrator.runs.store import deliver, find_run, state_root

    folder = find_run(state_root(), run)
    if what == "safetensors":
        if checkpoint not in ("best", "latest") and not checkpoint.isdigit():
            raise UsageError(f"--checkpoint {checkpoint} is not a checkpoint", "write best, latest or a step's number")
        with as_the_user():
            path, which = exports.safetensors(folder, checkpoint, output)
        say(f"wrote {path}: the weights of {which}")
        return 0
    if what == "torchrun":
        text = exports.torchrun_commands(folder, port)
    else:
        text = exports.accelerate_config(folder, node, port)
    if output is None:
        click.echo(text)
    else:
        with as_the_user():
            written = deliver(output, f"{text}\n".encode())
        say(f"wrote {written}")
    return 0

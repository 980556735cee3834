"""orch pull: a run's logs, metrics, result and a checkpoint, copied to a folder."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch, print_json, say, show


@orch.command()
@click.argument("run", shell_complete=complete.runs)
@click.option("--checkpoint", default="latest", show_default=True, metavar="best|latest|none|STEP", help="Which one.")
@click.option("--outputs", is_flag=True, help="First bring what its nodes have kept, however large it is.")
@click.option("--to", type=click.Path(path_type=Path), metavar="DIR", help="The folder; ./RUN by default.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def pull(run: str, checkpoint: str, outputs: bool, to: Path | None, as_json: bool) -> int:
    """Copy a run's log, metrics, result, outputs and a checkpoint to a folder; again, it copies only what is new."""
    from orchestrator.cli.render import results
    from orchestrator.node.system.private import as_the_user
    from orchestrator.operations import pull as collect
    from orchestrator.runs.store import find_run, state_root

    folder = find_run(state_root(), run)
    if outputs:
        collect.bring_outputs(folder)
    with as_the_user():
        pulled = collect.pull(folder, to or Path(folder.run_id), checkpoint, say)
    if as_json:
        print_json(pulled.to_json())
    else:
        show(results.pulled_page(pulled))
    return 0

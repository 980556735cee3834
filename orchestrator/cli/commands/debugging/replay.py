"""orch replay: run one rank of a run again, alone."""

from __future__ import annotations

import os

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch, say, show
from orchestrator.cli.terminal import become, has_terminal


@orch.command(epilog="Example: orch replay last --rank 3")
@click.argument("run", shell_complete=complete.runs)
@click.option("--rank", required=True, type=click.IntRange(0), metavar="N", help="The rank to run.")
@click.option("--here", is_flag=True, help="Run on this machine with this Python, not on the rank's node.")
@click.option(
    "--true-rank", is_flag=True, help="Keep RANK and WORLD_SIZE; only for programs that never call init_process_group."
)
@click.option("--afresh", is_flag=True, help="Start from scratch, not from the newest checkpoint.")
@click.option("--dry-run", "--dryrun", is_flag=True, help="Print the command; start nothing.")
def replay(run: str, rank: int, here: bool, true_rank: bool, afresh: bool, dry_run: bool) -> None:
    """Run one rank of a run again, alone, in this terminal.

    The code, environment and command are the run's.
    """
    from orchestrator.operations.debugging import replay as replays
    from orchestrator.runs.store import find_run, state_root

    one = replays.recall(find_run(state_root(), run), rank)
    if dry_run:
        show(replays.as_it_was(one))
        return
    way = replays.replay(one, os.environ, here=here, alone=not true_rank, afresh=afresh, terminal=has_terminal())
    say(way.where)
    become(way.argv)

"""orch replay: one rank of a run once more, by itself."""

from __future__ import annotations

import os

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch, say, show
from orchestrator.cli.terminal import become, has_terminal


@orch.command()
@click.argument("run", shell_complete=complete.runs)
@click.option("--rank", required=True, type=click.IntRange(0), metavar="N", help="Which of its ranks.")
@click.option("--here", is_flag=True, help="On this machine, with this Python, instead of on its node.")
@click.option("--true-rank", is_flag=True, help="With its own RANK and WORLD_SIZE: it must not wait for the others.")
@click.option("--afresh", is_flag=True, help="From the beginning, not from the run's newest checkpoint.")
@click.option("--dry-run", "--dryrun", is_flag=True, help="Print how the run started it; start nothing.")
def replay(run: str, rank: int, here: bool, true_rank: bool, afresh: bool, dry_run: bool) -> None:
    """Run one rank of RUN once more by itself at this terminal: the same code, environment and command."""
    from orchestrator.operations import replay as replays
    from orchestrator.runs.store import find_run, state_root

    one = replays.recall(find_run(state_root(), run), rank)
    if dry_run:
        show(replays.as_it_was(one))
        return
    way = replays.replay(one, os.environ, here=here, alone=not true_rank, afresh=afresh, terminal=has_terminal())
    say(way.where)
    become(way.argv)

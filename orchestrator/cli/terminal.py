"""The commands that take over this terminal: a shell on a node of a run, and one of its ranks once more."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from orchestrator.cli.group import orch, say
from orchestrator.errors import OrchError

# The rest is imported where it is used: `orch status` must not wait for what it doesn't need.
# ruff: noqa: PLC0415


@orch.command(context_settings={"ignore_unknown_options": True})
@click.argument("run")
@click.option("--node", default=0, show_default=True, type=click.IntRange(0), metavar="N", help="On this node.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND...]")
def shell(run: str, node: int, command: tuple[str, ...]) -> None:
    """Open a shell in the container of a node of a running RUN, or on the node; or run COMMAND there."""
    from orchestrator.shell import shell as way_to
    from orchestrator.store import find_run, state_root

    way = way_to(find_run(state_root(), run), node, command, terminal=has_terminal())
    if not command:
        say(f"{way.where}; exit leaves it, and the run goes on")
    become(way.argv)


@orch.command()
@click.argument("run")
@click.option("--rank", required=True, type=click.IntRange(0), metavar="N", help="Which of its ranks.")
@click.option("--here", is_flag=True, help="On this machine, with this Python, instead of on its node.")
@click.option("--true-rank", is_flag=True, help="With its own RANK and WORLD_SIZE: it must not wait for the others.")
@click.option("--afresh", is_flag=True, help="From the beginning, not from the run's newest checkpoint.")
@click.option("--dry-run", "--dryrun", is_flag=True, help="Print how the run started it; start nothing.")
def replay(run: str, rank: int, here: bool, true_rank: bool, afresh: bool, dry_run: bool) -> None:
    """Run one rank of RUN once more by itself at this terminal: the same code, environment and command."""
    from orchestrator import replay as replays
    from orchestrator.store import find_run, state_root

    one = replays.recall(find_run(state_root(), run), rank)
    if dry_run:
        click.echo(replays.as_it_was(one))
        return
    way = replays.replay(one, os.environ, here=here, alone=not true_rank, afresh=afresh, terminal=has_terminal())
    say(way.where)
    become(way.argv)


def has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def become(argv: Sequence[str]) -> NoReturn:
    """Let the program take this process's place, so that its signals and its exit code are its own."""
    sys.stdout.flush()
    try:
        os.execvp(argv[0], list(argv))  # noqa: S606 (an argv list)
    except FileNotFoundError:
        raise OrchError(f"there is no {argv[0]} on this machine", f"install it, or put it on PATH: {argv[0]}") from None

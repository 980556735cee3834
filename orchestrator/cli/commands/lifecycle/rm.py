"""orch rm: remove runs that have ended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli import complete
from orchestrator.cli.group import duration, orch, say, show, style
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.runs.store import RunDir


@orch.command(epilog="Example: orch rm --keep 50")
@click.argument("runs", nargs=-1, metavar="RUN...", shell_complete=complete.runs_and_sweeps)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(["succeeded", "failed", "cancelled"]),
    help="Only runs with this outcome (of all runs, unless RUN is given).",
)
@click.option("--older", metavar="TIME", help="Only runs that ended longer ago than 7d, 12h, ...")
@click.option("--keep", type=click.IntRange(1), metavar="N", help="Remove all finished runs except the newest N.")
@click.option(
    "--dry-run", "--dryrun", "dry_run", is_flag=True, help="List the runs that would be removed; remove nothing."
)
@click.option("--yes", "-y", is_flag=True, help="Don't ask for confirmation.")
def rm(
    runs: tuple[str, ...], states: tuple[str, ...], older: str | None, keep: int | None, dry_run: bool, yes: bool
) -> int:
    """Remove finished runs with their logs and checkpoints.

    Their outputs are removed too. At a terminal, the command asks first.

    With ORCH_KEEP_RUNS=N, older runs are removed after every run.
    """
    from orchestrator.cli.render.runs import removals_page, removed_outputs
    from orchestrator.cli.terminal import asks, is_wanted
    from orchestrator.operations import runs as run_operations
    from orchestrator.operations.removal import removal_of
    from orchestrator.protocol.quantities import size
    from orchestrator.runs.store import state_root

    root = state_root()
    removals = [removal_of(folder) for folder in _selected(root, runs, states, older, keep)]
    if dry_run or (removals and asks(yes=yes)):
        show(removals_page(removals, time.time(), style) if removals else "no run would be removed", err=not dry_run)
    total = f"{len(removals)} run{'s' * (len(removals) != 1)} ({size(sum(each.bytes for each in removals))})"
    if dry_run or (removals and not is_wanted(f"remove {total}?", yes=yes)):
        say("nothing was removed")
        return 0
    for each in removals:
        run_operations.remove(root, each.run)
        for line in removed_outputs(each):
            say(line)
    say(f"removed {', '.join(each.run.run_id for each in removals) or 'nothing'}")
    return 0


def _selected(
    root: Path, names: tuple[str, ...], states: tuple[str, ...], older: str | None, keep: int | None
) -> list[RunDir]:
    """Return the named runs, or all runs, that match the options."""
    from orchestrator.operations.removal import select
    from orchestrator.runs.state import RunStatus
    from orchestrator.runs.store import newest_runs
    from orchestrator.runs.sweeps import find_runs

    named = [folder for reference in names for folder in find_runs(root, reference, newest=False)]
    named = list({folder.run_id: folder for folder in named}.values())
    if not (states or older or keep):
        if not named:
            raise UsageError("name the runs to remove", "orch rm RUN..., or orch rm --keep 50")
        return named
    ids = {folder.run_id for folder in named}
    candidates = [folder for folder in newest_runs(root) if not named or folder.run_id in ids]
    meant, holding = select(
        candidates,
        states=[RunStatus(word) for word in states],
        before=None if older is None else time.time() - duration("--older", older),
        keep=keep or 0,
    )
    for folder in holding:
        say(f"{folder.run_id} is kept: some of its outputs are only on its nodes (orch status {folder.run_id})")
    return meant

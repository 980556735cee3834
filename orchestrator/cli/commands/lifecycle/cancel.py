"""orch cancel: stop runs, and verify that no process of them is left."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch, print_json, say, show, style, width_of
from orchestrator.cli.output import lines_on_proofs
from orchestrator.errors import EXIT_ORCH_FAILED, UsageError

if TYPE_CHECKING:
    from orchestrator.runs.store import RunDir


@orch.command(epilog="Example: orch cancel last")
@click.argument("runs", nargs=-1, metavar="RUN...", shell_complete=complete.runs_and_sweeps)
@click.option("--all", "-a", "everything", is_flag=True, help="Cancel all live runs; at a terminal, confirm first.")
@click.option("--yes", "-y", is_flag=True, help="Don't ask for confirmation.")
@click.option("--now", is_flag=True, help="Kill the ranks at once, without a last checkpoint.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (a list for several runs).")
def cancel(runs: tuple[str, ...], everything: bool, yes: bool, now: bool, as_json: bool) -> int:
    """Stop runs or sweeps; verify that no process is left.

    Ranks are sent TERM: scripts that use orchestrator.training save a checkpoint first. They are killed after
    limits.grace (30 s).
    """
    from orchestrator.cli.delegated import passed_on
    from orchestrator.cli.sweeps import cancel_all
    from orchestrator.runs.store import find_run
    from orchestrator.runs.sweeps import find_runs, find_sweep
    from orchestrator.supervisor.background import attended_root

    if bool(runs) == everything:
        raise UsageError("name the runs to cancel, or give --all, but not both", "orch status lists the runs")
    flags = [*(["--now"] if now else []), *(["--json"] if as_json else [])]
    codes = {each: passed_on(each, ["cancel", each, *flags]) for each in runs}
    root, here = attended_root(), [each for each, code in codes.items() if code is None]
    worst = max((code for code in codes.values() if code is not None), default=0)
    if everything:
        folders = _all_live(root, yes=yes)
        return cancel_all(root, folders, now=now, as_json=as_json) if folders else 0
    if len(runs) == 1 and here and find_sweep(root, here[0], newest=False) is None:
        return _cancel_one(root, find_run(root, here[0], newest=False), now=now, as_json=as_json)
    folders = [folder for each in here for folder in find_runs(root, each, newest=False)]
    if folders:
        folders = list({folder.run_id: folder for folder in folders}.values())
        worst = max(worst, cancel_all(root, folders, now=now, as_json=as_json))
    return worst


def _cancel_one(root: Path, folder: RunDir, *, now: bool, as_json: bool) -> int:
    from orchestrator.operations import runs as run_operations

    done = run_operations.cancel(root, folder, now=now)
    if as_json:
        print_json({**done.state.to_json(), "proofs": [proof.__dict__ for proof in done.proofs]})
    else:
        for line in (done.said, *(f"  {each}" for each in lines_on_proofs(done.proofs))):
            say(line)
    return 0 if done.is_proven else EXIT_ORCH_FAILED


def _all_live(root: Path, *, yes: bool) -> list[RunDir]:
    """Return all runs that have not ended. At a terminal, ask for confirmation, and return [] if the user declines."""
    from orchestrator.cli.render.runs import status_line, status_lines
    from orchestrator.cli.terminal import asks, is_wanted
    from orchestrator.looking.run import state_or_why_not
    from orchestrator.runs.store import live_runs

    states = [(folder, state_or_why_not(folder)) for folder in live_runs(root)]
    live = [(folder, state) for folder, state in states if not state.is_final]
    if live and asks(yes=yes):
        rows = [status_line(state, None, time.time()) for _, state in live]
        show(status_lines(rows, style, width_of(sys.stderr)), err=True)
    if live and is_wanted(f"cancel {len(live)} run{'s' * (len(live) != 1)}?", yes=yes):
        return [folder for folder, _ in live]
    say("nothing was cancelled" if live else "no run is active")
    return []

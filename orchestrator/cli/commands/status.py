"""orch status: all runs, or everything about one."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from orchestrator.cli import complete
from orchestrator.cli.delegated import delegated
from orchestrator.cli.group import orch, say, show, style
from orchestrator.cli.render import escapes
from orchestrator.errors import UsageError

WATCH_SECONDS = 1.0
MOST_OTHERS = 5


@orch.command()
@click.argument("run", required=False, shell_complete=complete.runs_and_sweeps)
@click.option("--all", "-a", "everything", is_flag=True, help="All runs, not only the newest.")
@click.option("--number", "-n", default=20, show_default=True, type=click.IntRange(1), help="How many of the newest.")
@click.option("--watch", "-w", is_flag=True, help="Keep the screen current until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@delegated
def status(run: str | None, everything: bool, number: int, watch: bool, as_json: bool) -> int:
    """Show runs, a sweep as one line, or everything about one RUN or SWEEP (an id, a unique prefix, or last)."""
    if watch and as_json:
        raise UsageError("--watch is for people, --json for programs", "leave one of them out")
    if watch:
        return _watch(lambda: _status_text(run, everything, number, as_json))
    (click.echo if as_json else show)(_status_text(run, everything, number, as_json))
    return 0


def _status_text(run: str | None, everything: bool, number: int, as_json: bool) -> str:
    from orchestrator.cli.render import runs as render
    from orchestrator.cli.sweeps import status_of
    from orchestrator.operations import runs as run_operations
    from orchestrator.runs import notification_ledger
    from orchestrator.runs.logs import beat_of, result_of
    from orchestrator.runs.store import find_run
    from orchestrator.runs.sweeps import find_sweep
    from orchestrator.supervisor.reconcile import state_of
    from orchestrator.supervisor.supervisor import attended_root

    root = attended_root()
    if run is None:
        return _overview(root, everything, number, as_json)
    if (sweep := find_sweep(root, run)) is not None:
        return status_of(root, sweep, as_json=as_json)
    folder = find_run(root, run)
    state, result = state_of(folder), result_of(folder)
    heartbeat = beat_of(folder, state.attempt)
    if as_json:
        whole = {**state.to_json(), "progress": heartbeat, "result": result, "folder": str(folder.path)}
        whole |= {"record": run_operations.record_of(folder), "notifications": notification_ledger.delivered(folder)}
        return json.dumps(whole, indent=1)
    page = render.status_page(state, heartbeat, result, str(folder.path), time.time(), style)
    return "\n".join([page, *(f"  {line}" for line in render.notify_lines(notification_ledger.delivered(folder)))])


def _name_the_others(root: Path) -> None:
    """Name runs that other machines look after, unasked: a table waits for no network."""
    from orchestrator.operations.delegate import pointers

    for pointer in pointers(root)[-MOST_OTHERS:]:
        say(f"{pointer.host} looks after {pointer.run_id}: orch status {pointer.run_id}")


def _overview(root: Path, everything: bool, number: int, as_json: bool) -> str:
    """Return the table of the newest runs, a sweep as one line; as JSON each run by itself."""
    from orchestrator.cli.render import runs as render
    from orchestrator.cli.render import sweeps
    from orchestrator.operations import sweep as sweeping
    from orchestrator.runs.logs import beat_of
    from orchestrator.runs.run_id import sweep_of

    now, lines, rows = time.time(), [], []
    for group in sweeping.grouped(root, everything=everything, limit=number):
        sweep = sweep_of(group[0][0].run_id)
        if sweep is not None and not as_json:
            lines.append(sweeps.sweep_line(sweep, [state for _, state in group], now))
            continue
        for folder, state in group:
            heartbeat = None if state.is_final else beat_of(folder, state.attempt)
            lines.append(render.status_line(state, heartbeat, now))
            rows.append({**state.to_json(), "sweep": sweep, "progress": heartbeat})
    if as_json:
        return json.dumps(rows, indent=1)
    _name_the_others(root)
    return render.status_lines(lines, style)


def _watch(text: Callable[[], str]) -> int:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), screen=sys.stdout.isatty(), auto_refresh=False) as live:
        while True:
            live.update(Text.from_ansi(escapes.page(text())), refresh=True)
            time.sleep(WATCH_SECONDS)  # the refresh rate of a screen

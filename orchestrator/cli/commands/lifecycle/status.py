"""orch status: list all runs, or show everything about one run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from orchestrator.cli import complete
from orchestrator.cli.delegated import delegated
from orchestrator.cli.group import orch, say, show, style, width_of
from orchestrator.cli.render import escapes
from orchestrator.cli.request import profile_option
from orchestrator.errors import UsageError

WATCH_SECONDS = 1.0
MOST_OTHERS = 5
NO_METRICS_SECONDS = 60.0  # after this time, the page of a run without metrics has a hint on how to write metrics


@orch.command(epilog="Example: orch status last")
@click.argument("run", required=False, shell_complete=complete.runs_and_sweeps)
@click.option("--all", "-a", "everything", is_flag=True, help="Show all runs, not only the newest.")
@click.option(
    "--number", "-n", default=20, show_default=True, type=click.IntRange(1), metavar="N", help="Show the newest N runs."
)
@click.option("--watch", "-w", is_flag=True, help="Refresh every second until Ctrl-C.")
@click.option("--all-users", is_flag=True, help="List all users' runs on the hosts of --profile (ssh).")
@profile_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@delegated
def status(
    run: str | None, everything: bool, number: int, watch: bool, all_users: bool, profile: str | None, as_json: bool
) -> int:
    """List runs, or show everything about one run or sweep.

    RUN is an id, a unique prefix of one, or last. Aliases: ls, ps, describe.
    """
    if watch and as_json:
        raise UsageError("--watch and --json can't be combined", "leave one of them out")
    if profile is not None and not all_users:
        raise UsageError("--profile needs --all-users", "orch status shows your runs of all profiles")
    if all_users:
        from orchestrator.cli.commands.machines.queue import show_shared_runs

        if run is not None or watch:
            raise UsageError(
                "--all-users can't be combined with RUN or --watch",
                "leave them out: orch status --all-users -p PROFILE",
            )
        return show_shared_runs(profile, as_json=as_json)
    if watch:
        return _watch(lambda: _status_text(run, everything, number, as_json))
    (click.echo if as_json else show)(_status_text(run, everything, number, as_json))
    return 0


def _status_text(run: str | None, everything: bool, number: int, as_json: bool) -> str:
    from orchestrator.supervisor.background import attended_root

    root = attended_root()
    if run is None:
        return _overview(root, everything, number, as_json)
    from orchestrator.runs.sweeps import find_sweep

    if (sweep := find_sweep(root, run)) is not None:
        from orchestrator.cli.sweeps import status_of

        return status_of(root, sweep, as_json=as_json)
    return _page(root, run, as_json=as_json)


def _page(root: Path, run: str, *, as_json: bool) -> str:
    """Return the page about one run."""
    from orchestrator.runs.store import find_run

    folder = find_run(root, run)
    if as_json:
        from orchestrator.looking import status

        return json.dumps(status.page(folder), indent=1)
    from orchestrator.cli.commands.lifecycle.why import findings_of
    from orchestrator.cli.render import runs as render
    from orchestrator.looking.account import account_of
    from orchestrator.looking.state import state_of
    from orchestrator.looking.status import trackers
    from orchestrator.runs.files.logs import beat_of, last_line, result_of
    from orchestrator.runs.files.written_metrics import HOW_TO_WRITE, has_metrics
    from orchestrator.runs.labels import labels_of
    from orchestrator.runs.notifications import delivered

    state, result = state_of(folder), result_of(folder)
    heartbeat, last = beat_of(folder, state.attempt), last_line(folder, state.attempt)
    page = render.status_page(
        state,
        heartbeat,
        result,
        str(folder.path),
        time.time(),
        style,
        last_line=last,
        width=width_of(sys.stdout),
        labels=labels_of(folder),
        account=account_of(folder, state),
    )
    took = (state.ended or time.time()) - state.started if state.started else 0.0
    is_without = took >= NO_METRICS_SECONDS and not (heartbeat or result or has_metrics(folder))
    said = [
        *findings_of(folder, state),
        *([f"no metrics: {HOW_TO_WRITE}"] if is_without else []),
        *render.notify_lines(delivered(folder)),
        *render.tracker_lines(trackers(folder)),
    ]
    return "\n".join([page, *(f"  {line}" for line in said)])


def _print_runs_elsewhere(root: Path) -> None:
    """Print the runs that other machines supervise, without contacting those machines."""
    if not (root / "elsewhere").is_dir():
        return
    from orchestrator.operations.submission.delegate import pointers

    for pointer in pointers(root)[-MOST_OTHERS:]:
        say(f"{pointer.host} supervises {pointer.run_id}; see its state with: orch status {pointer.run_id}")


def _overview(root: Path, everything: bool, number: int, as_json: bool) -> str:
    """Return the table of the newest runs, with one line for each sweep. JSON lists the runs of a sweep too."""
    if as_json:
        from orchestrator.looking import status

        return json.dumps(status.rows(root, everything=everything, limit=number), indent=1)
    from orchestrator.cli.render import runs as render
    from orchestrator.looking.run import grouped
    from orchestrator.runs.files.logs import beat_of, last_line
    from orchestrator.runs.run_id import sweep_of

    now, lines = time.time(), []
    for group in grouped(root, everything=everything, limit=number):
        if sweep := sweep_of(group[0][0].run_id):
            from orchestrator.cli.render import sweeps

            lines.append(sweeps.sweep_line(sweep, [state for _, state in group], now))
            continue
        for folder, state in group:
            heartbeat = None if state.is_final else beat_of(folder, state.attempt)
            last = "" if state.is_final or heartbeat else last_line(folder, state.attempt)
            lines.append(render.status_line(state, heartbeat, now, last))
    _print_runs_elsewhere(root)
    return render.status_lines(lines, style, width_of(sys.stdout))


def _watch(text: Callable[[], str]) -> int:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), screen=sys.stdout.isatty(), auto_refresh=False) as live:
        while True:
            live.update(Text.from_ansi(escapes.page(text())), refresh=True)
            time.sleep(WATCH_SECONDS)  # the screen is redrawn at this interval

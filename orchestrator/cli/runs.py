"""Commands about runs that have been submitted: status, logs, cancel, wait, why, rm."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.elsewhere import where_it_is
from orchestrator.cli.follow import Printer
from orchestrator.cli.follow import follow as follow_run
from orchestrator.cli.group import orch, print_json, say, style
from orchestrator.errors import EXIT_ORCH_FAILED, OrchError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.backends.base import NodeProof
    from orchestrator.logs import Selection
    from orchestrator.store import RunDir

# The rest is imported where it is used: `orch status` must not wait for what it doesn't need.
# ruff: noqa: PLC0415

WATCH_SECONDS = 1.0
MOST_OTHERS = 5


@orch.command()
@click.argument("run", required=False)
@click.option("--all", "-a", "everything", is_flag=True, help="All runs, not only the newest.")
@click.option("--number", "-n", default=20, show_default=True, type=click.IntRange(1), help="How many of the newest.")
@click.option("--watch", "-w", is_flag=True, help="Keep the screen current until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@where_it_is
def status(run: str | None, everything: bool, number: int, watch: bool, as_json: bool) -> int:
    """Show runs, a sweep as one line, or everything about one RUN or SWEEP (an id, a unique prefix, or last)."""
    if watch and as_json:
        raise UsageError("--watch is for people, --json for programs", "leave one of them out")
    if watch:
        return _watch(lambda: _status_text(run, everything, number, as_json))
    click.echo(_status_text(run, everything, number, as_json))
    return 0


def _status_text(run: str | None, everything: bool, number: int, as_json: bool) -> str:
    from orchestrator import controller, notify, render
    from orchestrator.cli.sweeps import status_of
    from orchestrator.conclude import state_of
    from orchestrator.logs import beat_of, result_of
    from orchestrator.store import find_run
    from orchestrator.supervisor import attended_root
    from orchestrator.sweeps import find_sweep

    root = attended_root()
    if run is None:
        return _overview(root, everything, number, as_json)
    if (sweep := find_sweep(root, run)) is not None:
        return status_of(root, sweep, as_json=as_json)
    folder = find_run(root, run)
    state, result = state_of(folder), result_of(folder)
    beat = beat_of(folder, state.attempt)
    if as_json:
        whole = {**state.to_json(), "progress": beat, "result": result, "folder": str(folder.path)}
        whole |= {"record": controller.record_of(folder), "notifications": notify.told(folder)}
        return json.dumps(whole, indent=1)
    page = render.status_page(state, beat, result, str(folder.path), time.time(), style)
    return "\n".join([page, *(f"  {line}" for line in render.notify_lines(notify.told(folder)))])


def _name_the_others(root: Path) -> None:
    """Runs that other machines look after are asked about one by one: a table waits for no network."""
    from orchestrator.elsewhere import pointers

    for pointer in pointers(root)[-MOST_OTHERS:]:
        say(f"{pointer.host} looks after {pointer.run_id}: orch status {pointer.run_id}")


def _overview(root: Path, everything: bool, number: int, as_json: bool) -> str:
    """The newest runs, a sweep as one line; as JSON each run by itself."""
    from orchestrator import render, sweep_pages, sweeping
    from orchestrator.logs import beat_of
    from orchestrator.sweep import sweep_of

    now, lines, rows = time.time(), [], []
    for group in sweeping.grouped(root, everything=everything, limit=number):
        sweep = sweep_of(group[0][0].run_id)
        if sweep is not None and not as_json:
            lines.append(sweep_pages.sweep_line(sweep, [state for _, state in group], now))
            continue
        for folder, state in group:
            beat = None if state.is_final else beat_of(folder, state.attempt)
            lines.append(render.status_line(state, beat, now))
            rows.append({**state.to_json(), "sweep": sweep, "progress": beat})
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
            live.update(Text.from_ansi(text()), refresh=True)
            time.sleep(WATCH_SECONDS)  # the refresh rate of a screen


@orch.command()
@click.argument("run")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run ends; Ctrl-C stops looking, not the run.")
@click.option("--rank", type=click.IntRange(0), help="This rank's log instead of rank 0's.")
@click.option("--node", type=click.IntRange(0), help="All ranks of this node.")
@click.option("--all", "-a", "everything", is_flag=True, help="All ranks of all nodes.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines of each log.")
@where_it_is
def logs(run: str, follow: bool, rank: int | None, node: int | None, everything: bool, tail: int | None) -> int:
    """Print the log of rank 0, or of the ranks asked for; of a sweep, those of each of its runs."""
    from orchestrator import controller
    from orchestrator.cli.sweeps import logs_of
    from orchestrator.conclude import state_of
    from orchestrator.logs import Selection, log_files
    from orchestrator.store import find_run
    from orchestrator.supervisor import attended_root
    from orchestrator.sweeps import find_sweep, points_in

    if everything and (rank is not None or node is not None):
        raise UsageError("--all excludes --rank and --node", "leave it out")
    root, selection = attended_root(), Selection(rank, node, everything)
    if (sweep := find_sweep(root, run)) is not None:
        if follow:
            raise UsageError("--follow follows one run", f"name a point of the sweep: {sweep}.0")
        return logs_of(points_in(root, sweep), selection, tail)
    folder = find_run(root, run)
    if follow:
        return follow_run(folder, selection=selection, tail=tail)
    with controller.bringing_logs(folder, selection):
        pass
    if not log_files(folder, selection):
        state = state_of(folder)
        which = f"rank {rank} has" if rank is not None else f"node {node} has" if node is not None else "there is"
        raise OrchError(f"{which} no log: the run is {state.state}", f"see: orch status {folder.run_id}")
    print_logs(folder, selection, tail)
    return 0


def print_logs(folder: RunDir, selection: Selection, tail: int | None) -> None:
    """Print the chosen logs as they are now."""
    from orchestrator.logs import Tail

    reader = Tail(folder, selection)
    if tail is not None:
        reader.skip_to_last(tail)
    printer = Printer(selection.takes_several)
    for log, line in reader.read(ended=True):
        printer.line(log, line, sys.stdout)


@orch.command()
@click.argument("run")
@click.option("--now", is_flag=True, help="Kill at once, without a last checkpoint.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@where_it_is
def cancel(run: str, now: bool, as_json: bool) -> int:
    """Stop a run, or all of a sweep, at the next step boundary, with a checkpoint; prove that nothing is left."""
    from orchestrator import controller
    from orchestrator.cli.sweeps import cancel_all
    from orchestrator.store import find_run
    from orchestrator.supervisor import attended_root
    from orchestrator.sweeps import find_sweep, points_in

    root = attended_root()
    if (sweep := find_sweep(root, run)) is not None:
        return cancel_all(root, points_in(root, sweep), now=now, as_json=as_json)
    folder = find_run(root, run)
    state, proofs = controller.cancel(root, folder, now=now)
    if as_json:
        print_json({**state.to_json(), "proofs": [proof.__dict__ for proof in proofs]})
    else:
        if not proofs:
            say(f"{folder.run_id} had ended before: {state.state}")
        else:
            say(f"{folder.run_id} {state.state}")
        for proof in proofs:
            say(f"  {proof.host}: {what_is_left(proof)}")
    return EXIT_ORCH_FAILED if any(proof.survivors or proof.is_away for proof in proofs) else 0


def what_is_left(proof: NodeProof) -> str:
    if proof.is_away:
        return "out of reach; its ranks end without the gang, and orch gc looks again when it is back"
    return f"still there: {', '.join(proof.survivors)}" if proof.survivors else "0 processes left"


@orch.command()
@click.argument("run")
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Give up waiting after this long.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@where_it_is
def wait(run: str, timeout: float | None, as_json: bool) -> int:
    """Wait for a run or a sweep to end; the exit code is its outcome (0, 100 failed, 101 not ended, 103 cancelled)."""
    from orchestrator import controller
    from orchestrator.cli.sweeps import wait_all
    from orchestrator.store import find_run
    from orchestrator.supervisor import attended_root
    from orchestrator.sweeps import find_sweep, points_in

    root = attended_root()
    if (sweep := find_sweep(root, run)) is not None:
        return wait_all(points_in(root, sweep), sweep, timeout, as_json=as_json)
    state = controller.wait(find_run(root, run), timeout=timeout)
    if as_json:
        print_json(state.to_json())
    else:
        say(f"{state.run_id} {state.state}")
    return controller.exit_code(state)


@orch.command()
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@where_it_is
def why(run: str, as_json: bool) -> int:
    """Say why a run ended as it did: rank, host, code, traceback, last lines, and what to do."""
    from orchestrator import render
    from orchestrator.conclude import state_of
    from orchestrator.store import find_run, state_root

    state = state_of(find_run(state_root(), run))
    if as_json:
        print_json(state.verdict.to_json() if state.verdict else None)
    else:
        click.echo(render.verdict_page(state, style))
    return 0


@orch.command()
@click.argument("runs", nargs=-1, metavar="RUN...")
@click.option("--keep", type=click.IntRange(1), metavar="N", help="Remove all finished runs but the newest N.")
def rm(runs: tuple[str, ...], keep: int | None) -> int:
    """Remove finished runs, with their logs and checkpoints. ORCH_KEEP_RUNS=N does so after every run."""
    from orchestrator import controller
    from orchestrator.store import state_root
    from orchestrator.supervisor import prune
    from orchestrator.sweeps import find_runs

    if not runs and keep is None:
        raise UsageError("nothing to remove was named", "orch rm RUN..., or orch rm --keep 50")
    root = state_root()
    removed = [folder for reference in runs for folder in find_runs(root, reference)]
    for folder in removed:
        controller.remove(root, folder)
    removed += prune(root, keep) if keep else []
    names = dict.fromkeys(folder.run_id for folder in removed)
    say(f"removed {', '.join(names) or 'nothing'}")
    return 0

"""orch wait: wait until a run has ended, and exit with a code for its outcome."""

from __future__ import annotations

import re

import click

from orchestrator.cli import complete
from orchestrator.cli.delegated import delegated
from orchestrator.cli.group import duration, orch, print_json, say


@orch.command(epilog="Example: orch wait last --timeout 1h")
@click.argument("run", shell_complete=complete.runs_and_sweeps)
@click.option("--timeout", metavar="TIME", help="Stop waiting after this long (exit code 101): 90, 15m or 1h30m.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@delegated
def wait(run: str, timeout: str | None, as_json: bool) -> int:
    """Wait until a run or sweep has ended.

    The exit code is its outcome: 0 succeeded, 100 failed, 101 not finished (--timeout), 103 cancelled, 104 succeeded,
    but some of its files are still on its machines.
    """
    from orchestrator.cli.render.runs import left_lines
    from orchestrator.cli.sweeps import wait_all
    from orchestrator.looking import run as looking
    from orchestrator.runs.store import find_run
    from orchestrator.runs.sweeps import find_sweep, points_in
    from orchestrator.supervisor.background import attended_root

    limit: float | None = None
    if timeout is not None:
        is_decimal = re.fullmatch(r"\d{1,12}\.\d{1,9}", timeout)
        limit = float(timeout) if is_decimal else duration("--timeout", timeout)
    root = attended_root()
    if (sweep := find_sweep(root, run)) is not None:
        return wait_all(points_in(root, sweep), sweep, limit, as_json=as_json)
    state = looking.wait(find_run(root, run), timeout=limit)
    if as_json:
        print_json(state.to_json())
    else:
        say("\n".join([f"{state.run_id} {state.state}", *left_lines(state)]))
    return looking.exit_code(state)

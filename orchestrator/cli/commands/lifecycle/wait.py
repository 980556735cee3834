"""orch wait: until a run has ended; its outcome is the exit code."""

from __future__ import annotations

import click

from orchestrator.cli import complete
from orchestrator.cli.delegated import delegated
from orchestrator.cli.group import orch, print_json, say


@orch.command(epilog="Example: orch wait last --timeout 3600")
@click.argument("run", shell_complete=complete.runs_and_sweeps)
@click.option(
    "--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Stop waiting after this long (exit code 101)."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@delegated
def wait(run: str, timeout: float | None, as_json: bool) -> int:
    """Wait for a run or sweep; the exit code is its outcome.

    0 succeeded, 100 failed, 101 not finished (--timeout), 103 cancelled.
    """
    from orchestrator.cli.sweeps import wait_all
    from orchestrator.operations import runs as run_operations
    from orchestrator.runs.store import find_run
    from orchestrator.runs.sweeps import find_sweep, points_in
    from orchestrator.supervisor.start import attended_root

    root = attended_root()
    if (sweep := find_sweep(root, run)) is not None:
        return wait_all(points_in(root, sweep), sweep, timeout, as_json=as_json)
    state = run_operations.wait(find_run(root, run), timeout=timeout)
    if as_json:
        print_json(state.to_json())
    else:
        say(f"{state.run_id} {state.state}")
    return run_operations.exit_code(state)

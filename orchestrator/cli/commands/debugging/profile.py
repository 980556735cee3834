"""orch profile: record some steps of a live run with torch's profiler."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli import complete
from orchestrator.cli.delegated import delegated
from orchestrator.cli.group import orch, print_json, say, show
from orchestrator.errors import EXIT_ORCH_FAILED
from orchestrator.protocol.debugging.profiling import MOST_STEPS


@orch.command(epilog="Example: orch profile last --steps 5")
@click.argument("run", shell_complete=complete.runs)
@click.option(
    "--steps", type=click.IntRange(1, MOST_STEPS), default=5, show_default=True, help="Number of steps to record."
)
@click.option(
    "--wait",
    type=click.FloatRange(1, 3600),
    default=120,
    show_default=True,
    help="Time limit for recording, in seconds.",
)
@click.option("--output", type=click.Path(path_type=Path), help="Folder for the traces (default: RUN-profile).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@delegated
def profile(run: str, steps: int, wait: float, output: Path | None, as_json: bool) -> int:
    """Record the next steps of every rank of a live run.

    Open each rank's trace in chrome://tracing or ui.perfetto.dev.
    """
    from orchestrator.operations.debugging.profiling import profile as record
    from orchestrator.runs.store import find_run, state_root

    found = find_run(state_root(), run)
    done = record(found, steps, wait, output or Path(f"{found.run_id}-profile"))
    if as_json:
        print_json(done.to_json())
    else:
        show("\n".join(done.files))
        for problem in done.problems:
            say(problem)
    return 0 if done.files else EXIT_ORCH_FAILED

"""orch tensorboard: start TensorBoard with the metrics of runs."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch, say
from orchestrator.errors import EXIT_INTERRUPTED, OrchError


@orch.command(epilog="Example: orch tensorboard last")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=complete.runs_and_sweeps)
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N",
    help="TensorBoard's port; 0 means any (default: 6006, or the next free port).",
)  # fmt: skip
def tensorboard(runs: tuple[str, ...], port: int | None) -> int:
    """Show the metrics of runs in TensorBoard.

    Starts TensorBoard at 127.0.0.1 until Ctrl-C. It has no password, so all users of this machine can open it. The
    curves of a job with track: tensorboard are updated; other runs are shown as they are now.
    """
    from orchestrator.operations import tensorboard as operation
    from orchestrator.operations.ranking import selected_runs
    from orchestrator.supervisor.background import attended_root

    argv = operation.program()
    _, found = selected_runs(attended_root(), runs)
    with tempfile.TemporaryDirectory(prefix="orch-") as folder:
        for run in operation.lay_out(found, Path(folder)):
            say(f"{run.run_id} is shown as it is now and not updated, because its job has no `track: tensorboard`")
        argv += ["--logdir", folder, "--host", "127.0.0.1", *(["--port", str(port)] if port else [])]
        try:
            code = subprocess.run(argv, check=False, stdin=subprocess.DEVNULL).returncode
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
    if code != 0:
        raise OrchError(f"TensorBoard ended with exit code {code}", "see TensorBoard's messages above")
    return 0

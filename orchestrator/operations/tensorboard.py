"""orch tensorboard: a folder in which each run is a link to its event file, and the program that shows it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.runs.files.logs import result_of
from orchestrator.runs.leaving import redaction_of_message
from orchestrator.runs.store import RunDir
from orchestrator.trackers.history import new_lines
from orchestrator.trackers.ledger import FOLDER, TENSORBOARD, Progress


def program() -> list[str]:
    """Return what starts TensorBoard: orch's own interpreter's, else that of PATH; UsageError where there is none."""
    if find_spec("tensorboard") is not None:
        return [sys.executable, "-m", "tensorboard.main"]
    if (found := shutil.which("tensorboard")) is not None:
        return [found]
    raise UsageError(
        "TensorBoard is installed neither in orch's environment nor on PATH",
        f"install it into orch's: {sys.executable} -m pip install tensorboard\nor activate the environment that has it",
    )


def lay_out(runs: Sequence[RunDir], folder: Path) -> list[RunDir]:
    """Put each run into a folder by its id; return those whose curves stay as they are now.

    Of a run that TensorBoard is not told of, the event file is written there, of what its metrics are now.
    """
    still = []
    for run in runs:
        told = run.path / FOLDER / TENSORBOARD
        if told.is_dir():
            (folder / run.run_id).symlink_to(told)
        elif (run.path / "metrics.jsonl").exists():
            _write(run, folder / run.run_id)
            still.append(run)
        else:
            raise UsageError(f"run {run.run_id} has written no metrics yet", "see: docs/trackers.md")
    return still


def _write(run: RunDir, folder: Path) -> None:
    from orchestrator.trackers.tensorboard import TensorBoard  # noqa: PLC0415 (most runs have written it themselves)

    redact = redaction_of_message(run)
    board, ending = TensorBoard(run, run.record(), redact, folder), run.ending()
    progress, offset, end = board.begin(Progress()), -1, 0
    while end != offset:
        lines, end = new_lines(run.path / "metrics.jsonl", offset := end, redact, has_ended=ending is not None)
        progress = board.send(progress, lines)
    if ending is not None:
        board.end(progress, ending, result_of(run) or {})

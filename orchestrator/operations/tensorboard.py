"""orch tensorboard: makes a folder with the event files of runs, and returns the command that shows the folder."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.runs.files.logs import result_of
from orchestrator.runs.files.written_metrics import HOW_TO_WRITE, files_of_metrics
from orchestrator.runs.leaving import redaction_of_message
from orchestrator.runs.store import RunDir
from orchestrator.trackers.history import new_lines
from orchestrator.trackers.progress import FOLDER, TENSORBOARD, Progress


def program() -> list[str]:
    """Return the command that starts TensorBoard, from orch's own environment or from PATH.

    Raises UsageError if TensorBoard is in neither.
    """
    if find_spec("tensorboard") is not None:
        return [sys.executable, "-m", "tensorboard.main"]
    if (found := shutil.which("tensorboard")) is not None:
        return [found]
    raise UsageError(
        "TensorBoard is installed neither in orch's environment nor on PATH",
        f"install it into orch's environment: {sys.executable} -m pip install tensorboard\n"
        "or activate the environment that has it",
    )


def lay_out(runs: Sequence[RunDir], folder: Path) -> list[RunDir]:
    """Fill the folder with a subfolder for each run, named after the run. Return the runs whose curves will not be
    updated.

    The subfolder is a link to the event files of the run's tracker `tensorboard`. If the run does not have this
    tracker, event files are written from the run's present metrics, and its curves will not be updated.
    """
    still = []
    for run in runs:
        told, (own, of_program) = run.path / FOLDER / TENSORBOARD, files_of_metrics(run)
        if told.is_dir():  # the tracker receives only rank 0's metrics
            (folder / run.run_id).symlink_to(told)
            if of_program.exists():
                _write(run, folder / f"{run.run_id}.files", (of_program,))
        elif own.exists() or of_program.exists():
            _write(run, folder / run.run_id, (own, of_program))
            still.append(run)
        else:
            raise UsageError(f"run {run.run_id} has written no metrics yet", HOW_TO_WRITE)
    return still


def _write(run: RunDir, folder: Path, files: Iterable[Path]) -> None:
    from orchestrator.trackers.tensorboard import TensorBoard

    redact = redaction_of_message(run)
    board, ending = TensorBoard(run, run.record(), redact, folder), run.ending()
    progress = board.begin(Progress())
    for path in files:
        offset, end = -1, 0
        while end != offset:
            lines, end = new_lines(path, offset := end, redact, has_ended=ending is not None)
            progress = board.send(progress, lines)
    if ending is not None:
        board.end(progress, ending, result_of(run) or {})

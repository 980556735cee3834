"""Sends the news of a run to one tracker. After a kill the feed is repeated, and nothing is counted twice."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from orchestrator.errors import BackendError
from orchestrator.runs.files.logs import result_of
from orchestrator.runs.leaving import redaction_of_message
from orchestrator.runs.record import RunRecord
from orchestrator.runs.redaction import Redaction
from orchestrator.runs.state import Ending
from orchestrator.runs.store import RunDir
from orchestrator.trackers.history import MetricLine, new_lines
from orchestrator.trackers.ledger import MLFLOW, TENSORBOARD, Progress, hidden_of, progress_of, save_progress


class Tracker(Protocol):
    """The interface of a tracker. Repeated data must count once. Methods raise BackendError if the tracker fails."""

    def begin(self, progress: Progress) -> Progress:
        """Send the run and its parameters."""

    def send(self, progress: Progress, lines: Iterable[MetricLine]) -> Progress:
        """Send metrics, in order."""

    def end(self, progress: Progress, ending: Ending, result: Mapping[str, object]) -> Progress:
        """Send how the run ended, after all metrics."""


def tracker(name: str, run: RunDir, record: RunRecord, redact: Redaction) -> Tracker:
    """Load and return the tracker of this name, which redacts everything that it receives."""
    if name == TENSORBOARD:
        from orchestrator.trackers.tensorboard import TensorBoard

        return TensorBoard(run, record, redact)
    if name == MLFLOW:
        from orchestrator.trackers.mlflow import Mlflow

        return Mlflow(run, record, hidden_of(run), redact)
    from orchestrator.trackers.wandb import Wandb

    return Wandb(run, record, redact)


def has_news(run: RunDir, progress: Progress, *, has_ended: bool) -> bool:
    """Tell whether the tracker lacks anything of the run. Only the size of one file is read."""
    if progress.is_done:
        return False
    if not progress.is_begun or has_ended or progress.problem:
        return True
    return _size(run) != progress.offset


def _size(run: RunDir) -> int:
    try:
        return os.stat(f"{run.path}/metrics.jsonl").st_size
    except OSError:
        return 0


def feed(run: RunDir, name: str) -> Progress:
    """Send all news to one tracker. Return the progress, with the problem if the tracker failed."""
    record, progress, redact = run.record(), progress_of(run, name), redaction_of_message(run)
    try:
        target = tracker(name, run, record, redact)
        if not progress.is_begun:
            progress = _kept(run, name, target.begin(progress))
        while True:
            ending = run.ending()  # read before the metrics, because no metrics follow a verdict
            at = progress.offset if progress.offset <= _size(run) else 0  # the program has restarted its file
            lines, end = new_lines(run.path / "metrics.jsonl", at, redact, has_ended=ending is not None)
            if end == at:
                break
            progress = _kept(run, name, replace(target.send(progress, lines), offset=end))
        if ending is not None:
            progress = replace(target.end(progress, ending, result_of(run) or {}), is_done=True)
        return _kept(run, name, progress) if ending is not None or progress.problem else progress
    except BackendError as error:
        progress = replace(progress, problem=error.message, is_done=not error.transient)
        save_progress(run, name, progress)
        return progress


def _kept(run: RunDir, name: str, progress: Progress) -> Progress:
    progress = replace(progress, problem="")
    save_progress(run, name, progress)
    return progress

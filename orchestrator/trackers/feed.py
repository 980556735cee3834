"""Sends the data of a run to one tracker. If the supervisor is killed, the next one may send some data again. The
tracker then counts the data only once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from orchestrator.errors import BackendError
from orchestrator.runs.files.logs import result_of
from orchestrator.runs.leaving import redaction_of_message
from orchestrator.runs.outbox import secrets_of
from orchestrator.runs.record import RunRecord
from orchestrator.runs.redaction import Redaction
from orchestrator.runs.state import Ending
from orchestrator.runs.store import RunDir
from orchestrator.trackers.history import MetricLine, new_lines
from orchestrator.trackers.progress import MLFLOW, TENSORBOARD, Progress, progress_of, save_progress


class Tracker(Protocol):
    """The interface of a tracker.

    After a kill, the same data may be sent again, and must still count only once. Each method returns the given
    progress, which it has advanced by the data that it sent. Raises BackendError if the tracker fails.
    """

    def begin(self, progress: Progress) -> Progress:
        """Send the run and its parameters."""

    def send(self, progress: Progress, lines: Iterable[MetricLine]) -> Progress:
        """Send these metrics in the order of the lines."""

    def end(self, progress: Progress, ending: Ending, result: Mapping[str, object]) -> Progress:
        """Send how the run ended, after all metrics."""


def tracker(name: str, run: RunDir, record: RunRecord, redact: Redaction) -> Tracker:
    """Return the tracker with this name. It sends only texts from which `redact` has removed secrets."""
    if name == TENSORBOARD:
        from orchestrator.trackers.tensorboard import TensorBoard

        return TensorBoard(run, record, redact)
    if name == MLFLOW:
        from orchestrator.trackers.mlflow import Mlflow

        return Mlflow(run, record, secrets_of(run), redact)
    from orchestrator.trackers.wandb import Wandb

    return Wandb(run, record, redact)


class Feed:
    """Sends new data of one run to one of its trackers."""

    def __init__(self, run: RunDir, name: str) -> None:
        self.run, self.name = run, name

    def has_news(self, *, has_ended: bool) -> bool:
        """Return whether the tracker lacks data of the run. The check is cheap, because it does not open
        metrics.jsonl.
        """
        progress = progress_of(self.run, self.name)
        if progress.is_done:
            return False
        if not progress.is_begun or has_ended or progress.problem:
            return True
        return self._size() != progress.offset

    def deliver(self) -> str:
        """Send all data that the tracker lacks. Return the error message if the tracker failed, or ""."""
        try:
            self._send(progress_of(self.run, self.name))
        except BackendError as error:
            # The data that was sent before the error is recorded already.
            progress = replace(progress_of(self.run, self.name), problem=error.message, is_done=not error.transient)
            save_progress(self.run, self.name, progress)
            return error.message
        return ""

    def _send(self, progress: Progress) -> None:
        run, redact = self.run, redaction_of_message(self.run)
        target = tracker(self.name, run, run.record(), redact)
        if not progress.is_begun:
            progress = self._keep(target.begin(progress))
        while True:
            ending = run.ending()  # read before the metrics, because no metrics follow a verdict
            at = progress.offset if progress.offset <= self._size() else 0  # 0 if the program has truncated the file
            lines, end = new_lines(run.path / "metrics.jsonl", at, redact, has_ended=ending is not None)
            if end == at:
                break
            progress = self._keep(replace(target.send(progress, lines), offset=end))
        if ending is not None:
            self._keep(replace(target.end(progress, ending, result_of(run) or {}), is_done=True))
        elif progress.problem:
            self._keep(progress)

    def _keep(self, progress: Progress) -> Progress:
        progress = replace(progress, problem="")
        save_progress(self.run, self.name, progress)
        return progress

    def _size(self) -> int:
        try:
            return os.stat(f"{self.run.path}/metrics.jsonl").st_size
        except OSError:
            return 0

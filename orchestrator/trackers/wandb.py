"""Writes an offline folder of Weights & Biases after the run's end. The package wandb runs in a separate process.

In wandb's format, a process can't continue the files of another process, so all files are written at once. The user
sends them by `wandb sync`. A repeated `wandb sync` updates the same run, because the run's id is the same.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import BackendError, StoreError
from orchestrator.runs.record import RunRecord
from orchestrator.runs.redaction import Redaction
from orchestrator.runs.state import Ending
from orchestrator.runs.store import RunDir
from orchestrator.trackers.history import MetricLine, ending_in_words, new_lines, numbers_of, parameters_of
from orchestrator.trackers.progress import FOLDER, WANDB, Progress

TIMEOUT: Final = 300.0  # seconds for writing the folder
INTERPRETER: Final = sys.executable
PROGRAM: Final = Path(__file__).with_name("wandb_program.py")
# The environment variables that the process gets. wandb's API keys are not among them.
_KEPT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV")


class Wandb:
    """The tracker that writes a run's offline folder."""

    def __init__(self, run: RunDir, record: RunRecord, redact: Redaction) -> None:
        self.run, self.record, self.redact = run, record, redact
        self.folder = run.path / FOLDER / WANDB

    def begin(self, progress: Progress) -> Progress:
        """Do nothing, because the folder is written after the run's end."""
        return replace(progress, is_begun=True)

    def send(self, progress: Progress, lines: Iterable[MetricLine]) -> Progress:
        """Do nothing, because all metrics are read after the run's end."""
        return progress

    def end(self, progress: Progress, ending: Ending, result: Mapping[str, object]) -> Progress:
        """Write the whole run for wandb into a new folder, and rename the folder when it is complete. A folder that
        an interrupted writer has left is removed first.
        """
        new = self.run.path / FOLDER / ".wandb"
        try:
            for folder in (new, self.folder):
                shutil.rmtree(folder, ignore_errors=True)
            new.mkdir(mode=0o700, parents=True)
            words = ending_in_words(ending, self.redact)
            summary = {**numbers_of(result, self.redact, "result/"), **{f"orch/{k}": v for k, v in words.items()}}
            head: dict[str, Any] = {
                "id": self.run.run_id,
                "project": self.record.name,
                "config": parameters_of(self.record, self.redact),
            }
            head |= {"summary": summary, "code": 0 if ending.verdict.outcome == "succeeded" else 1, "folder": str(new)}
            self._write([head, *self._rows()])
            os.rename(new / "wandb", self.folder)
            shutil.rmtree(new, ignore_errors=True)
        except OSError as error:
            raise StoreError(f"{self.folder} can't be written: {error.strerror}") from error
        return replace(progress, link=f"wandb sync {self.folder}/offline-run-*")

    def _rows(self) -> Iterator[dict[str, float]]:
        """Yield the metrics of each step. If a later attempt has repeated a step, its values are used."""
        steps: dict[int, dict[str, float]] = {}
        offset, end = -1, 0
        while end != offset:
            lines, end = new_lines(self.run.path / "metrics.jsonl", offset := end, self.redact, has_ended=True)
            for line in lines:
                steps.setdefault(line.step, {}).update({"_timestamp": line.time, **line.values})
        for step in sorted(steps):
            yield {"step": step, **steps[step]}

    def _write(self, lines: list[dict[str, Any]]) -> None:
        """Start a process that loads wandb, reads these lines and writes the folder. Raises BackendError if the
        process fails.
        """
        process = subprocess.Popen(
            [INTERPRETER, "-P", str(PROGRAM)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
            env={name: value for name, value in os.environ.items() if name in _KEPT}, cwd="/",
        )  # fmt: skip
        try:
            _, errors = process.communicate("\n".join(map(json.dumps, lines)).encode(), timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise BackendError(f"wandb was killed because it had not ended after {TIMEOUT:g} s") from None
        if process.returncode != 0:
            last = errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise BackendError(f"wandb has failed: {last}", "is wandb installed in orch's environment?")

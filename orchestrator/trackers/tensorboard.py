"""Writes TensorBoard's event file into the run's folder. If the writing process is killed, the next process
continues the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from orchestrator.errors import StoreError
from orchestrator.protocol.reading import READABLE, open_own
from orchestrator.runs.record import RunRecord
from orchestrator.runs.redaction import Redaction
from orchestrator.runs.state import Ending
from orchestrator.runs.store import RunDir
from orchestrator.trackers import event_file
from orchestrator.trackers.history import MetricLine, ending_in_words, numbers_of, parameters_of
from orchestrator.trackers.progress import FOLDER, TENSORBOARD, Progress


class TensorBoard:
    """The tracker that writes a run's event file. The file's bytes depend only on the run's files and the known
    secrets.
    """

    def __init__(self, run: RunDir, record: RunRecord, redact: Redaction, folder: Path | None = None) -> None:
        self.run_id, self.record, self.redact = run.run_id, record, redact
        self.folder = folder or run.path / FOLDER / TENSORBOARD
        self.path = self.folder / f"events.out.tfevents.{int(record.created)}.{run.run_id}"

    def begin(self, progress: Progress) -> Progress:
        """Write the run's parameters."""
        created = self.record.created
        data = event_file.header(created) + event_file.text(
            "parameters", _table(parameters_of(self.record, self.redact)), created
        )
        link = f"orch tensorboard {self.run_id}"
        return replace(self._append(replace(progress, size=0), data), is_begun=True, link=link)

    def send(self, progress: Progress, lines: Iterable[MetricLine]) -> Progress:
        """Write these metrics. If an attempt repeats steps, the later values replace the earlier ones."""
        parts = []
        for line in lines:
            time = line.time or self.record.created
            if line.attempt > progress.attempt:
                parts.append(event_file.restart(line.step, time))
            parts.append(event_file.scalars(line.values.items(), line.step, time))
            progress = replace(progress, attempt=max(line.attempt, progress.attempt), step=line.step)
        return self._append(progress, b"".join(parts))

    def end(self, progress: Progress, ending: Ending, result: Mapping[str, object]) -> Progress:
        """Write how the run ended, and the numbers of its result."""
        time = ending.ended or self.record.created
        data = event_file.text("verdict", _table(ending_in_words(ending, self.redact)), time)
        if values := numbers_of(result, self.redact, "result/"):
            data = event_file.scalars(values.items(), progress.step, time) + data
        return self._append(progress, data)

    def _append(self, progress: Progress, data: bytes) -> Progress:
        """Write the data at the offset that `progress` records. This overwrites data that a killed writer has written
        after the offset.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(open_own(self.path, os.O_RDWR | os.O_CREAT, READABLE), "r+b") as file:
                file.seek(progress.size)
                file.write(data)
                file.truncate()  # a killed supervisor that knew other secrets may have written more
        except OSError as error:
            raise StoreError(f"{self.path} can't be written: {error.strerror}") from error
        return replace(progress, size=progress.size + len(data))


def _table(values: Mapping[str, str]) -> str:
    """Return the values as a Markdown table. Markdown in names and values is escaped."""
    rows = [f"| {_cell(name)} | {_cell(value)} |" for name, value in values.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


def _cell(text: str) -> str:
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{char}" if char in "\\`*_{}[]()#!|~" else char for char in plain)

"""Saving within a training run: on rank 0, with a failure said aloud instead of raised, and verified aside."""

import time
from collections.abc import Mapping
from dataclasses import replace
from threading import Thread
from typing import Any

from orchestrator.training import checkpoints, group
from orchestrator.training.errors import CheckpointError
from orchestrator.training.options import Places
from orchestrator.training.report import Reporter


class Saver:
    """Writes the checkpoints of one run into its folder, one at a time."""

    def __init__(self, places: Places, report: Reporter) -> None:
        self.last_step = -1
        self._places = places
        self._report = report
        self._verifying: Thread | None = None
        if group.leads():
            checkpoints.clean(places.checkpoints)

    def save(self, contents: Mapping[str, Any], manifest: checkpoints.Manifest) -> None:
        """Write a checkpoint, on the disk when this returns; re-reading it and deleting older ones goes on aside."""
        self.close()
        started = time.monotonic()
        try:
            path = checkpoints.write(self._places.checkpoints, contents, replace(manifest, run=self._places.run_id))
        except CheckpointError as error:
            self._report.warn(f"{error} Training goes on; the checkpoints before it are untouched.")
            self._report.metric("save", step=manifest.step, epoch=manifest.epoch, problem=str(error))
            return
        seconds = round(time.monotonic() - started, 3)
        self._report.say(f"saved {path} in {seconds:.2f} s")
        self._report.metric("save", step=manifest.step, epoch=manifest.epoch, seconds=seconds)
        self._verifying = Thread(target=self._verify, args=(path,), name="verify-checkpoint")
        self._verifying.start()

    def _verify(self, path: Any) -> None:
        try:
            checkpoints.prune(self._places.checkpoints, path, self._places.keep)
        except CheckpointError as error:
            self._report.warn(str(error))

    def close(self) -> None:
        """Wait until the last checkpoint has been verified."""
        if self._verifying is not None:
            self._verifying.join()
            self._verifying = None

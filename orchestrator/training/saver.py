"""Saving within a training run: on rank 0, with a failure said aloud instead of raised, and verified aside."""

import functools
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

from torch import Tensor

from orchestrator.training import checkpoints, group
from orchestrator.training.errors import CheckpointError
from orchestrator.training.options import Places
from orchestrator.training.report import Reporter
from orchestrator.training.resume import SHARDED


class Saver:
    """Writes the checkpoints of one run into its folder, one at a time."""

    def __init__(self, places: Places, report: Reporter) -> None:
        self.last_step = -1
        self._places = places
        self._report = report
        self._verifying: Thread | None = None
        if group.leads():
            checkpoints.clean(places.checkpoints)

    def save(
        self,
        contents: Mapping[str, Any] | None,
        manifest: checkpoints.Manifest,
        shards: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Write a checkpoint, on the disk when this returns; re-reading it and deleting older ones goes on aside.

        Rank 0 gives the contents. With `shards` all ranks call this, and each writes its own.
        """
        self.close()
        started = time.monotonic()
        manifest = replace(manifest, run=self._places.run_id)
        try:
            if shards is not None:
                path = self._write_shards(contents or {}, manifest, shards)
            elif contents is not None:
                path = checkpoints.write(self._places.checkpoints, contents, manifest)
            else:
                return
        except CheckpointError as error:
            self._report.warn(f"{error} Training goes on; the checkpoints before it are untouched.")
            self._report.metric("save", step=manifest.step, epoch=manifest.epoch, problem=str(error))
            return
        seconds = round(time.monotonic() - started, 3)
        self._report.say(f"saved {path} in {seconds:.2f} s")
        self._report.metric("save", step=manifest.step, epoch=manifest.epoch, seconds=seconds)
        if group.leads():
            self._verifying = Thread(target=self._verify, args=(path,), name="verify-checkpoint")
            self._verifying.start()

    def _write_shards(
        self, contents: Mapping[str, Any], manifest: checkpoints.Manifest, shards: Mapping[str, Tensor]
    ) -> Path:
        from orchestrator.training import sharded  # noqa: PLC0415 - DCP is slow to import, and few need it

        return sharded.write(self._places.checkpoints, shards, {**contents, SHARDED: True}, manifest)

    @functools.cached_property
    def is_shared(self) -> bool:
        """Whether all ranks see the folder of checkpoints, so that each can write its part; collective at first."""
        from orchestrator.training import sharded  # noqa: PLC0415

        seen = sharded.is_shared(self._places.checkpoints)
        if not seen:
            self._report.say(f"not all ranks see {self._places.checkpoints}: rank 0 gathers and writes checkpoints")
        return seen

    def _verify(self, path: Path) -> None:
        try:
            checkpoints.prune(self._places.checkpoints, path, self._places.keep)
        except CheckpointError as error:
            self._report.warn(str(error))

    def close(self) -> None:
        """Wait until the last checkpoint has been verified."""
        if self._verifying is not None:
            self._verifying.join()
            self._verifying = None

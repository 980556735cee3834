"""Saves checkpoints during training. A failed save is reported and not raised."""

import functools
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from orchestrator.protocol.checkpoints.checkpoint_dir import Manifest
from orchestrator.training.checkpoint import format as checkpoints
from orchestrator.training.checkpoint.place import is_shared
from orchestrator.training.checkpoint.replica import SecondCopy
from orchestrator.training.checkpoint.resume import SHARDED
from orchestrator.training.checkpoint.staging import Staging
from orchestrator.training.distributed import group
from orchestrator.training.errors import CheckpointError
from orchestrator.training.options import Places
from orchestrator.training.progress.heartbeat import HeartbeatFile
from orchestrator.training.progress.report import Reporter


class Saver:
    """Writes the checkpoints of a run into its folder, one at a time."""

    def __init__(self, places: Places, report: Reporter, heartbeats: HeartbeatFile, *, aside: bool = False) -> None:
        """Prepare to save checkpoints, and remove unfinished checkpoints from the folder. With `aside`, a save first
        copies the state in memory, and the copy is written in the background.
        """
        self.last_step = -1
        self._places = places
        self._report = report
        self._heartbeats = heartbeats
        self._staging = Staging() if aside else None
        self._staged_shards: Staging | None = None
        self._members: dist.ProcessGroup | None = None
        self._working: Future[None] | None = None
        self._second = SecondCopy(places.second_copy, report)
        if group.leads():
            checkpoints.clean(places.checkpoints)

    def save(
        self,
        contents: Mapping[str, Any] | None,
        manifest: Manifest,
        shards: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Save a checkpoint. It is on the disk when this returns, unless it is written in the background.

        Rank 0 passes the contents. With `shards`, all ranks must call this, and each rank writes its own shards. Older
        checkpoints are always deleted in the background.
        """
        started = time.monotonic()
        self.close()
        manifest = replace(manifest, run=self._places.run_id)
        if shards is None and contents is None:
            return
        own = contents if contents is not None else {}
        if self._staging is None:
            path = self._write(own, manifest, shards, started)
            self._start(lambda: self._prune(path))
            return
        copied = self._staging.copy(own)
        parts = None if shards is None else self._on_host(shards)
        waited = round(time.monotonic() - started, 3)
        self._start(lambda: self._prune(self._write(copied, manifest, parts, started, waited=waited)))

    def _on_host(self, shards: Mapping[str, Tensor]) -> dict[str, Tensor]:
        from orchestrator.training.checkpoint import sharded

        if self._staged_shards is None:
            self._staged_shards = Staging()
            self._members = group.beside()
        return sharded.on_host(shards, self._staged_shards)

    def _write(
        self,
        contents: Mapping[str, Any],
        manifest: Manifest,
        shards: Mapping[str, Tensor] | None,
        started: float,
        **more: float,
    ) -> Path | None:
        """Write a checkpoint, report the save, and return its path. If the save fails, the failure is only reported,
        and None is returned.
        """
        self._second.wait()
        try:
            if shards is not None:
                path = self._write_shards(contents, manifest, shards)
            else:
                path = checkpoints.write(self._places.checkpoints, contents, manifest)
        except CheckpointError as error:
            self._report.warn(f"{error} Training continues; earlier checkpoints are unchanged.")
            self._report.metric("save", step=manifest.step, epoch=manifest.epoch, problem=str(error))
            self._heartbeats.saved(str(error))
            return None
        self._heartbeats.saved()
        self._second.expect(path)
        seconds = round(time.monotonic() - started, 3)
        aside = f", for which training waited {more['waited']:.2f} s" if more else ""
        self._report.say(f"saved {path} in {seconds:.2f} s{aside}")
        self._report.metric("save", step=manifest.step, epoch=manifest.epoch, seconds=seconds, **more)
        return path

    def _start(self, work: Callable[[], None]) -> None:
        worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._working = worker.submit(work)
        worker.shutdown(wait=False)  # the thread ends when its work is done

    def _write_shards(self, contents: Mapping[str, Any], manifest: Manifest, shards: Mapping[str, Tensor]) -> Path:
        from orchestrator.training.checkpoint import sharded

        return sharded.write(self._places.checkpoints, shards, {**contents, SHARDED: True}, manifest, self._members)

    @functools.cached_property
    def is_shared(self) -> bool:
        """Return whether all ranks see the folder of checkpoints, so that each rank can write its own part. All ranks
        must make the first access together.
        """
        seen = is_shared(self._places.checkpoints)
        if not seen:
            self._report.say(f"not all ranks see {self._places.checkpoints}: rank 0 gathers and writes checkpoints")
        return seen

    def _prune(self, path: Path | None) -> None:
        """Delete old checkpoints on rank 0 after a new checkpoint was saved at `path`. `path` is None if the save
        failed.
        """
        if path is None or not group.leads():
            return
        try:
            checkpoints.prune(self._places.checkpoints, path, self._places.keep, self._places.keep_best)
        except CheckpointError as error:
            self._report.warn(str(error))

    def close(self) -> None:
        """Wait until the last checkpoint has been written and older checkpoints have been deleted. Raises the errors
        of these tasks.
        """
        working, self._working = self._working, None
        if working is not None:
            working.result()

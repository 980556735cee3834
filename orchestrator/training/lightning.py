"""Connects Lightning's Trainer to orch: a callback adds heartbeats, metrics, the result and a clean stop.

    from orchestrator.training.lightning import OrchCallback
    ...
    trainer = Trainer(..., callbacks=[OrchCallback()])

The callback does nothing if orch has not started the process. It needs the package lightning or pytorch_lightning. orch
need not be installed on the nodes.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    from pytorch_lightning import Callback, LightningModule, Trainer

from orchestrator.training import run
from orchestrator.training.checkpoint.place import is_shared
from orchestrator.training.distributed import stop
from orchestrator.training.distributed.ranks import read_ranks
from orchestrator.training.progress.report import numbers

__all__ = ["OrchCallback"]

_STOPPED = "stopped-"


class OrchCallback(Callback):  # type: ignore[misc] # lightning is no dependency of ours
    """Reports Trainer's progress to orch. After a stop signal, it saves a checkpoint and stops at a step boundary."""

    def __init__(self) -> None:
        self._step = 0
        self._total: int | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Protect the workers of data loaders from stop signals. The workers are started after this."""
        if run.started_by_orch():
            stop.protect_forks()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Catch signals from now on. If the nodes share no folder, let each node write the checkpoints.

        Lightning's own handler of SIGTERM is replaced, because it starts a collective at an arbitrary moment.
        """
        self._step = trainer.global_step
        total = trainer.estimated_stepping_batches
        self._total = int(total) if total != float("inf") else None
        if run.started_by_orch():
            stop.install()
            run.begin(self._step, self._total)
            _save_where_it_is_read(trainer)
            _report_saves(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Send a heartbeat after each optimizer step. If all ranks agree to stop, save and exit with code 95."""
        if trainer.global_step == self._step:
            return  # gradients are still being accumulated
        self._step = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        run.step(self._step, self._total, loss, epoch=trainer.current_epoch)
        if self._step % trainer.log_every_n_steps == 0:
            run.metric(self._step, **numbers(trainer.callback_metrics))
        # After the last step there is nothing to stop.
        if self._step != self._total and run.started_by_orch() and run.stop_requested():
            self._stop(trainer)

    def _stop(self, trainer: Trainer) -> None:
        """Save a checkpoint beside Lightning's own, delete the checkpoint of an earlier stop, and exit."""
        folder, resumed = _folder(trainer), str(trainer.ckpt_path or "")
        path = os.path.join(folder, f"{_STOPPED}epoch={trainer.current_epoch}-step={self._step}.ckpt")
        trainer.save_checkpoint(path)
        if os.path.basename(resumed).startswith(_STOPPED) and os.path.dirname(resumed) == folder:
            trainer.strategy.remove_checkpoint(resumed)
        run.leave(self._step)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the phase `eval`."""
        if not trainer.sanity_checking:
            run.phase("eval")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the measured values to the run's metrics."""
        if not trainer.sanity_checking:
            run.metric(trainer.global_step, **numbers(trainer.callback_metrics))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the result. A later test adds its metrics."""
        self._write_result(trainer)
        run.phase("done")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the metrics of a test set to the result."""
        self._write_result(trainer)

    def _write_result(self, trainer: Trainer) -> None:
        run.result(**{**numbers(trainer.callback_metrics), "step": self._step})


def _folder(trainer: Trainer) -> str:
    """Return the folder of Lightning's checkpoints: a path, or a URL such as s3://bucket/folder."""
    return str(getattr(trainer.checkpoint_callback, "dirpath", None) or trainer.default_root_dir)


def _report_saves(trainer: Trainer) -> None:
    """Report the phase `save` during each save. Trainer has no callback for a save of weights alone."""
    save = trainer.save_checkpoint
    if "save_checkpoint" in vars(trainer):  # an earlier call of `fit` has done this already
        return

    def reported(*given: Any, **named: Any) -> None:
        with run.phase("save"):
            save(*given, **named)

    trainer.save_checkpoint = reported


def _save_where_it_is_read(trainer: Trainer) -> None:
    """If the nodes share no folder, let one rank of each node write and delete checkpoints.

    By default only rank 0 writes, but each rank resumes from its own node's folder. Nothing is changed if no rank has
    the whole state (FSDP, ZeRO).
    """
    ranks, strategy = read_ranks(), trainer.strategy
    is_whole = type(strategy).save_checkpoint.__qualname__ == "Strategy.save_checkpoint" and not any(
        hasattr(optimizer, "consolidate_state_dict") for optimizer in trainer.optimizers
    )
    has_several_nodes = ranks.world_size > ranks.local_world_size
    if not (is_whole and has_several_nodes) or "://" in _folder(trainer) or is_shared(Path(_folder(trainer))):
        return

    def save(checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        if ranks.local_rank == 0:
            strategy.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options=storage_options)

    def remove(filepath: Any) -> None:
        if ranks.local_rank == 0:
            strategy.checkpoint_io.remove_checkpoint(filepath)

    strategy.save_checkpoint, strategy.remove_checkpoint = save, remove

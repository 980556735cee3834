"""Connects Hugging Face's Trainer to orch: a callback adds heartbeats, metrics, the result and a clean stop.

    from orchestrator.training.hf import OrchCallback
    ...
    trainer = Trainer(..., callbacks=[OrchCallback()])

The callback does nothing if orch has not started the process. It needs the package transformers. orch need not be
installed on the nodes.
"""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from orchestrator.training import run
from orchestrator.training.checkpoint.place import is_shared
from orchestrator.training.distributed import stop
from orchestrator.training.distributed.ranks import read_ranks
from orchestrator.training.progress.report import numbers

__all__ = ["OrchCallback"]


class OrchCallback(TrainerCallback):  # type: ignore[misc] # transformers is no dependency of ours
    """Reports Trainer's progress to orch. After a stop signal, it saves a checkpoint and stops at a step boundary."""

    def __init__(self) -> None:
        self._result: dict[str, float] = {}
        self._loss: float | None = None
        self._stops = self._is_trained = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **_more: Any
    ) -> None:
        """Catch stop signals, except in worker processes. If the nodes share no folder, let each node write the
        checkpoints.
        """
        if not run.started_by_orch():
            return
        stop.install()
        stop.protect_forks()
        run.begin(state.global_step, state.max_steps)
        self._is_trained = False
        ranks = read_ranks()
        if ranks.world_size > ranks.local_world_size and not is_shared(Path(args.output_dir)):
            args.save_on_each_node = True  # each rank resumes from its own node's folder
            if hasattr(model, "should_save_on_this_rank"):
                # transformers 5.23 writes weights on rank 0 only, even with save_on_each_node.
                model.should_save_on_this_rank = _saves_if_main

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_more: Any
    ) -> TrainerControl:
        """Send a heartbeat. If all ranks agree to stop, make Trainer save a checkpoint and leave its loop."""
        batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        run.step(state.global_step, state.max_steps, self._loss, samples=batch, epoch=int(state.epoch or 0))
        # After the last step there is nothing to stop.
        if state.global_step < state.max_steps and run.started_by_orch() and run.stop_requested():
            self._stops = True
            # Evaluate no more, because an evaluation can take longer than the time that is left. Save in any case,
            # because some settings save only after a better result.
            control.should_evaluate, control.should_save, control.should_training_stop = False, True, True
        _report_phase(control)
        return control

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_more: Any) -> None:
        """Exit with code 95 after a stop. Otherwise Trainer would evaluate, and might delete the last checkpoint."""
        if self._stops:
            run.leave(state.global_step)
        _report_phase(control)

    def on_prediction_step(self, *_all: Any, **_more: Any) -> None:
        """Report the phase `eval`."""
        run.phase("eval")

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_more: Any) -> None:
        """Report the phase that follows an evaluation: `done`, or `save` if a checkpoint may follow."""
        if self._is_trained:
            run.phase("done")
        elif control.should_save or args.save_strategy == "best":
            run.phase("save")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_more: Any,
    ) -> None:
        """Write Trainer's logs to the run's metrics, and store the newest value of each name for the result."""
        found = numbers(logs or {})
        self._loss = found.get("loss", self._loss)
        self._result.update(found)
        run.metric(state.global_step, **found)
        if self._is_trained:
            self._write_result(state)

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any],
        **_more: Any,
    ) -> None:
        """Add the metrics of a test set to the result."""
        self._result.update(numbers(metrics))
        if self._is_trained:
            self._write_result(state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **_more: Any
    ) -> None:
        """Write the result. A later evaluation adds its metrics."""
        if model is not None:
            vars(model).pop("should_save_on_this_rank", None)  # otherwise this method would be pickled with the model
        self._is_trained = True
        self._write_result(state)
        run.phase("done")

    def _write_result(self, state: TrainerState) -> None:
        run.result(**{**self._result, "step": state.global_step})


def _saves_if_main(is_main_process: bool) -> bool:
    """Return the argument, which Trainer computes according to save_on_each_node. This function replaces a method of
    the model that would let only rank 0 save.
    """
    return is_main_process


def _report_phase(control: TrainerControl) -> None:
    """Report the phase `eval` or `save` if Trainer does this next, because either may take longer than any step."""
    if control.should_evaluate:
        run.phase("eval")
    elif control.should_save:
        run.phase("save")

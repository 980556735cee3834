"""Hugging Face's Trainer under orch: heartbeats, metrics, the result, and the clean stop, by one callback.

    from orchestrator.training.hf import OrchCallback
    ...
    trainer = Trainer(..., callbacks=[OrchCallback()])

Where orch has not started the process, it does nothing. It needs transformers, and on the node no orch.
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
    """Tells orch how far Trainer is, and stops it at a step with a checkpoint when a signal asks for it."""

    def __init__(self) -> None:
        self._result: dict[str, float] = {}
        self._loss: float | None = None
        self._stops = self._is_trained = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **_more: Any
    ) -> None:
        """Catch signals, and keep them from workers; where nodes share no folder, let each write the checkpoints."""
        if not run.started_by_orch():
            return
        stop.install()
        stop.protect_forks()
        run.begin(state.global_step, state.max_steps)
        self._is_trained = False
        ranks = read_ranks()
        if ranks.world_size > ranks.local_world_size and not is_shared(Path(args.output_dir)):
            args.save_on_each_node = True  # each rank resumes from what its own node has
            if hasattr(model, "should_save_on_this_rank"):
                # transformers 5.23 writes weights on rank 0 alone, whatever save_on_each_node says.
                model.should_save_on_this_rank = _as_asked

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_more: Any
    ) -> TrainerControl:
        """Send a heartbeat; where all ranks agree to stop, have Trainer save now and leave its loop."""
        batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        run.step(state.global_step, state.max_steps, self._loss, samples=batch, epoch=int(state.epoch or 0))
        # Of the last step nothing is left to stop.
        if state.global_step < state.max_steps and run.started_by_orch() and run.stop_requested():
            self._stops = True
            # An evaluation can take longer than what is left, and its result decides with some settings what is saved.
            control.should_evaluate, control.should_save, control.should_training_stop = False, True, True
        _enter_phase(control)
        return control

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_more: Any) -> None:
        """Leave with exit code 95 after a stop: what follows would evaluate, and may delete the last checkpoint."""
        if self._stops:
            run.leave(state.global_step)
        _enter_phase(control)

    def on_prediction_step(self, *_all: Any, **_more: Any) -> None:
        """Say that the process evaluates."""
        run.phase("eval")

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_more: Any) -> None:
        """Say what follows an evaluation: the end, or maybe a checkpoint."""
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
        """Hand on what Trainer logs: to the metrics, and with the newest of each name to the result."""
        found = numbers(logs or {})
        self._loss = found.get("loss", self._loss)
        self._result.update(found)
        run.metric(state.global_step, **found)
        if self._is_trained:
            self._tell(state)

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any],
        **_more: Any,
    ) -> None:
        """Add what was measured on a test set to the result."""
        self._result.update(numbers(metrics))
        if self._is_trained:
            self._tell(state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **_more: Any
    ) -> None:
        """Write the result; an evaluation that follows adds to it."""
        if model is not None:
            vars(model).pop("should_save_on_this_rank", None)  # it would be pickled with the model
        self._is_trained = True
        self._tell(state)
        run.phase("done")

    def _tell(self, state: TrainerState) -> None:
        run.result(**{**self._result, "step": state.global_step})


def _as_asked(is_main_process: bool) -> bool:
    return is_main_process


def _enter_phase(control: TrainerControl) -> None:
    """Say what Trainer does before its next step; a large checkpoint may take longer than a step ever does."""
    if control.should_evaluate:
        run.phase("eval")
    elif control.should_save:
        run.phase("save")

"""The base class of all strategies. It implements the training step for a single process, and each strategy
overrides a few methods.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from orchestrator.training import compiling, precision
from orchestrator.training.activations import checkpoint_in_place
from orchestrator.training.checkpoint import random_state
from orchestrator.training.data.sampler import Share, cut, pick
from orchestrator.training.data.samples import Tensors
from orchestrator.training.data.task import Task
from orchestrator.training.distributed.ranks import Ranks
from orchestrator.training.errors import UserError
from orchestrator.training.options import Options
from orchestrator.training.strategies.layers import blocks


@dataclass(frozen=True)
class Setup:
    """The inputs of a strategy. `grouped` tells whether there is a process group."""

    options: Options
    task: Task
    ranks: Ranks
    device: torch.device
    grouped: bool


class Strategy:
    """A way of using devices. It holds the model and the optimizer, does training steps, and saves and loads the state
    of both.

    `model` is the bare module, whose names are used in checkpoints. `network` is the module that training calls.
    """

    one_process: ClassVar[bool] = False
    """Whether the strategy runs in one process, with any number of devices."""
    shares_data: ClassVar[bool] = True
    """Whether each rank takes its own part of a batch. Otherwise each rank takes the whole batch."""
    refused: ClassVar[Mapping[str, str]] = {}
    """Maps each precision that the strategy does not support to what the user can choose instead."""
    saves_shards: ClassVar[bool] = False
    """Whether each rank can write its own part of a checkpoint. Otherwise rank 0 writes the whole checkpoint."""

    @classmethod
    def data_part(cls, options: Options, ranks: Ranks) -> tuple[int, int]:
        """Return (number of parts into which the ranks split a batch, index of this rank's part). Ranks that share a
        layer have the same part. No collective is used, because ranks need this before they join the process group.
        """
        if not cls.shares_data:
            return 1, 0
        return max(1, ranks.world_size // options.tensor_ranks), ranks.rank // options.tensor_ranks

    @classmethod
    def make(cls, setup: Setup) -> nn.Module:
        """Create the task's model. Later, `place` moves the model to its devices. Some strategies leave the weights
        uninitialized on some ranks.
        """
        return setup.task.model(setup.options)

    def __init__(self, setup: Setup, model: nn.Module) -> None:
        self.setup = setup
        self.check()
        model = precision.convert(model, setup.options.precision)
        if setup.options.activation_checkpointing:
            checkpoint_in_place(blocks(model))
        if setup.options.channels_last:
            # Convolutions take the layout of their weights, so inputs need no conversion.
            model = model.to(memory_format=torch.channels_last)
        self.model = self.place(model)
        self.network = self.wrap(self.model)
        computed = [*blocks(self.model)] if setup.options.compile_blocks else self.computed()
        compiling.compile_in_place(computed, setup.options.compile, setup.options.compile_mode)
        self.optimizer = setup.task.optimizer(self.model.parameters(), setup.options)
        self._check_fused()
        self._rates = [each["lr"] for each in self.optimizer.param_groups]
        self.scaler = precision.scaler(setup.options.precision, setup.device)
        self._has_frozen_layers = False

    def check(self) -> None:
        """Raise UserError if this strategy does not support the ranks, the devices or an option."""
        options = self.setup.options
        precision.check(options.precision, self.setup.device)
        compiling.check(options.compile, options.compile_mode, self.setup.device)
        if remedy := self.refused.get(options.precision):
            raise UserError(
                f"--precision {options.precision} does not work with the strategy {options.strategy}: choose {remedy}."
            )
        if self.one_process and self.setup.ranks.world_size > 1:
            raise UserError(
                f"The strategy {options.strategy} uses one process, but {self.setup.ranks.world_size} ranks "
                "were started: start one (--nodes 1 --nproc-per-node 1), or choose --strategy ddp."
            )

    def _check_fused(self) -> None:
        if self.setup.options.fused and not all(each.get("fused") for each in self.optimizer.param_groups):
            kind = type(self.optimizer).__name__
            raise UserError(
                f"--fused needs a fused optimizer, but the {kind} of the task {self.setup.task.name} is not fused: "
                f"write {kind}(..., fused=options.fused) in its optimizer(), if torch has this optimizer fused."
            )

    def place(self, model: nn.Module) -> nn.Module:
        """Move the bare model to its devices."""
        return model.to(self.setup.device)

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the module that training calls."""
        return model

    def computed(self) -> Sequence[nn.Module]:
        """Return the modules that --compile compiles."""
        return [self.network]

    @property
    def devices(self) -> Sequence[torch.device]:
        """Return all devices on which this process computes. Its main device is the first."""
        return [self.setup.device]

    @property
    def data_ranks(self) -> int:
        """Return the number of parts into which the ranks split a batch."""
        return self.data_part(self.setup.options, self.setup.ranks)[0]

    @property
    def data_rank(self) -> int:
        """Return the index of this rank's part of a batch."""
        return self.data_part(self.setup.options, self.setup.ranks)[1]

    # -- a step

    def begin_step(self) -> None:
        """Put the model into training mode and clear the gradients."""
        if self.setup.options.compile_mode == "reduce-overhead":
            # Memory that the last step's CUDA graphs have used is free from here on.
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        # train() visits every module, so it is called only if needed.
        if self._has_frozen_layers or not self.model.training:
            self.model.train()
            self._has_frozen_layers = False
        self.optimizer.zero_grad(set_to_none=True)

    def backward(self, data: Tensors, share: Share) -> Tensor:
        """Compute the gradients of the mean loss over the global batch. Return this rank's part of the mean loss.

        The rank's share of the batch is split into --accumulate parts, and gradients are exchanged after the last part.
        All ranks have the same number of parts. For an empty part, a dummy sample is computed, and its loss is
        multiplied by 0.
        """
        parts = cut(share, self.setup.options.accumulate)
        losses = []
        for number, part in enumerate(parts, 1):
            with nullcontext() if number == len(parts) else self.unsynchronised():
                losses.append(self._backward(data, part))
        return torch.stack(losses).sum()

    def unsynchronised(self) -> AbstractContextManager[Any]:
        """Return a context in which a backward pass exchanges no gradients."""
        return nullcontext()

    def _backward(self, data: Tensors, share: Share) -> Tensor:
        """Run one backward pass and return this rank's part of the mean loss.

        The loss is first multiplied by the number of ranks, because strategies average the gradients over the ranks.
        """
        if len(share.indices) == 0:
            freeze_batch_norm(self.model)
            self._has_frozen_layers = True
        *inputs, targets = pick(data, share.indices)
        part = self.loss(self.outputs(inputs), targets) * (len(share.indices) / share.count)
        self.differentiate(part * self.data_ranks)
        return part.detach()

    def outputs(self, inputs: list[Tensor]) -> Any:
        """Return the network's outputs for these inputs in training."""
        return precision.forward(self.network, inputs, self.setup.options.precision)

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the mean loss over the samples of these outputs."""
        return self.setup.task.loss(outputs, targets)

    def differentiate(self, loss: Tensor) -> None:
        """Compute the gradients of a loss and add them to the existing gradients."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def set_rate(self, part: float) -> None:
        """Multiply the task's learning rates by `part` for the optimizer's next step."""
        for each, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            each["lr"] = rate * part

    def step(self) -> None:
        """Take an optimizer step. With fp16 the step is skipped if the scaled gradients overflowed."""
        if self.setup.options.clip is not None:
            self.scaler.unscale_(self.optimizer)
            self.clip(self.setup.options.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def clip(self, norm: float) -> None:
        """Scale the gradients down to this total norm if their norm is larger."""
        nn.utils.clip_grad_norm_(self.model.parameters(), norm)

    def predict(self, inputs: list[Tensor]) -> Any:
        """Return the outputs in an evaluation, or None if another rank returns them. All ranks must call this."""
        return precision.forward(self.model, inputs, self.setup.options.precision)

    # -- state

    def own_weights(self) -> Iterable[Tensor]:
        """Return the weights, or parts of weights, that this rank holds."""
        return self.model.parameters()

    def is_finite(self) -> bool:
        """Return whether all weights of this rank are finite."""
        return all(bool(weight.isfinite().all()) for weight in self.own_weights())

    def full_state(self) -> dict[str, Any] | None:
        """Return "model" and "optimizer" as a single process would save them. All ranks must call this. Return None on
        ranks other than 0.
        """
        if self.setup.ranks.rank:
            return None
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_full(self, saved: Mapping[str, Any], source: str) -> None:
        """Load a state that `full_state` of any strategy returned. All ranks must call this. `source` is the name of
        the checkpoint in error messages.
        """
        random_state.load_weights(self.model, random_state.part(saved, "model", source), source)
        random_state.load_optimizer(self.optimizer, random_state.part(saved, "optimizer", source))

    def shards(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors of this rank for a sharded checkpoint, and a dict of all other values, which are the same
        on all ranks.
        """
        raise NotImplementedError  # only strategies with `saves_shards` have this method

    def load_shards(self, saved: Mapping[str, Any], path: Path) -> None:
        """Load a sharded checkpoint that any number of ranks wrote. All ranks must call this. `saved` has the values
        that are not tensors.
        """
        raise NotImplementedError  # as for `shards`


def freeze_batch_norm(model: nn.Module) -> None:
    """Freeze the running statistics of BatchNorm until the next model.train(), so that a dummy sample does not change
    them.

    SyncBatchNorm is not frozen, because the other ranks wait for this rank in its collective.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, nn.SyncBatchNorm):
            module.eval()

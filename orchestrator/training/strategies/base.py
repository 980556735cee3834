"""What all strategies share: the plain step of one process. Each of the others changes it in a place or two."""

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
    """What a strategy is made for; `grouped` tells whether there is a process group."""

    options: Options
    task: Task
    ranks: Ranks
    device: torch.device
    grouped: bool


class Strategy:
    """One way of using the devices: it holds model and optimizer, steps them, and gives and takes their state.

    `model` is the bare module, whose names checkpoints use; `network` is what is called in training.
    """

    one_process: ClassVar[bool] = False
    """Is it one process, however many devices it uses?"""
    shares_data: ClassVar[bool] = True
    """Does each rank take its own part of a batch, rather than all of it?"""
    saves_shards: ClassVar[bool] = False
    """Can each rank write its own part of a checkpoint?"""

    @classmethod
    def make(cls, setup: Setup) -> nn.Module:
        """Return the task's model, as this rank needs it to begin with."""
        return setup.task.model(setup.options)

    def __init__(self, setup: Setup, model: nn.Module) -> None:
        self.setup = setup
        self.check()
        model = precision.convert(model, setup.options.precision)
        if setup.options.activation_checkpointing:
            checkpoint_in_place(blocks(model))
        if setup.options.channels_last:
            # Convolutions follow their weights: the inputs need not be turned.
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
        """Refuse, by a UserError, what this strategy can't do with these ranks, devices and options."""
        options = self.setup.options
        precision.check(options.precision, self.setup.device)
        compiling.check(options.compile, options.compile_mode, self.setup.device)
        if self.one_process and self.setup.ranks.world_size > 1:
            raise UserError(
                f"The strategy {options.strategy} is one process, and {self.setup.ranks.world_size} ranks "
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
        """Put the bare model where it computes."""
        return model.to(self.setup.device)

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the module that is called in training."""
        return model

    def computed(self) -> Sequence[nn.Module]:
        """Return the modules that --compile compiles."""
        return [self.network]

    @property
    def devices(self) -> Sequence[torch.device]:
        """All devices that this process computes on, its own first."""
        return [self.setup.device]

    @property
    def data_ranks(self) -> int:
        """How many ranks share a batch."""
        return self.setup.ranks.world_size if self.shares_data else 1

    @property
    def data_rank(self) -> int:
        """Which of the shares is this rank's."""
        return self.setup.ranks.rank if self.shares_data else 0

    # -- a step

    def begin_step(self) -> None:
        """Put the model into training and take the last step's gradients away."""
        if self.setup.options.compile_mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]  # what the last step's graphs have left is free
        # train() visits every module: where nothing is to be changed, that is time lost at each step.
        if self._has_frozen_layers or not self.model.training:
            self.model.train()
            self._has_frozen_layers = False
        self.optimizer.zero_grad(set_to_none=True)

    def backward(self, data: Tensors, share: Share) -> Tensor:
        """Leave in the gradients the exact mean over the global batch; returns this rank's part of the mean loss.

        The share is taken in --accumulate parts, and only the last of them exchanges gradients. All ranks take
        equally many parts: one without samples takes part with one sample whose loss counts zero.
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
        """One backward pass. Ranks' gradients are averaged, so each rank's part of the mean is multiplied by them."""
        if len(share.indices) == 0:
            freeze_batch_norm(self.model)
            self._has_frozen_layers = True
        *inputs, targets = pick(data, share.indices)
        part = self.loss(self.outputs(inputs), targets) * (len(share.indices) / share.count)
        self.differentiate(part * self.data_ranks)
        return part.detach()

    def outputs(self, inputs: list[Tensor]) -> Any:
        """Return the network's outputs in training."""
        return precision.forward(self.network, inputs, self.setup.options.precision)

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the mean loss of outputs."""
        return self.setup.task.loss(outputs, targets)

    def differentiate(self, loss: Tensor) -> None:
        """Add a loss's gradients to those that are there."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def set_rate(self, part: float) -> None:
        """Let the optimizer's next step have this part of the learning rates that the task has given it."""
        for each, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            each["lr"] = rate * part

    def step(self) -> None:
        """Let the optimizer take its step; with fp16 it is left out where the scaled gradients overflowed."""
        if self.setup.options.clip is not None:
            self.scaler.unscale_(self.optimizer)
            self.clip(self.setup.options.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def clip(self, norm: float) -> None:
        """Scale the gradients down to this norm, where theirs together is larger."""
        nn.utils.clip_grad_norm_(self.model.parameters(), norm)

    def predict(self, inputs: list[Tensor]) -> Any:
        """Return the outputs in an evaluation, or None where another rank has them; on all ranks or on none."""
        return precision.forward(self.model, inputs, self.setup.options.precision)

    # -- state

    def own_weights(self) -> Iterable[Tensor]:
        """Return the weights, or parts of them, that this rank keeps."""
        return self.model.parameters()

    def is_finite(self) -> bool:
        """Return whether all weights of this rank are numbers."""
        return all(bool(weight.isfinite().all()) for weight in self.own_weights())

    def full_state(self) -> dict[str, Any] | None:
        """Return "model" and "optimizer" as one process would have them, on rank 0, and None elsewhere; collective."""
        if self.setup.ranks.rank:
            return None
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_full(self, saved: Mapping[str, Any], where: str) -> None:
        """Take what `full_state` gave, under whatever strategy; `where` names the checkpoint in errors. Collective."""
        random_state.load_weights(self.model, random_state.part(saved, "model", where), where)
        random_state.load_optimizer(self.optimizer, random_state.part(saved, "optimizer", where))

    def shards(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return this rank's tensors for a sharded checkpoint, and what is plain and alike on all ranks."""
        raise NotImplementedError  # asked only of strategies whose checkpoints are sharded, which have their own

    def load_shards(self, saved: Mapping[str, Any], path: Path) -> None:
        """Take what `shards` gave, with however many ranks; `saved` is the plain part. Collective."""
        raise NotImplementedError  # as `shards`


def freeze_batch_norm(model: nn.Module) -> None:
    """Keep a sample that counts nothing out of running statistics until the next step's model.train().

    SyncBatchNorm is left alone: it talks to the other ranks in training mode, which would wait for it.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, nn.SyncBatchNorm):
            module.eval()

"""The strategy pipeline. Each rank holds some layers, and the parts of a batch follow one another through the ranks."""

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from orchestrator.training import precision
from orchestrator.training.checkpoint import random_state
from orchestrator.training.data.sampler import Share, cut, pick
from orchestrator.training.data.samples import Tensors
from orchestrator.training.distributed import group
from orchestrator.training.errors import UserError
from orchestrator.training.strategies import layers
from orchestrator.training.strategies.base import Strategy


class Pipeline(Strategy):
    """Splits the model as `model-parallel` does, one piece for each rank, with torch.distributed.pipelining.

    All ranks work on the same samples: the first rank reads the inputs, and the last rank reads the targets. `model`
    keeps the layers of other ranks as empty tensors, so that weights have the names and numbers of the whole model.
    """

    shares_data = False
    # GradScaler detects overflows only in this rank's layers, so ranks would disagree about skipping a step.
    refused: ClassVar[Mapping[str, str]] = {"fp16": "bf16, which needs no scaling"}

    def place(self, model: nn.Module) -> nn.Module:
        ranks = self.setup.ranks
        pieces = layers.cut(model, ranks.world_size)
        # Shapes are computed with outlines, which have no data. A trial run would draw random numbers, and would change
        # BatchNorm's statistics.
        self.outlines = [_outline(piece) for piece in pieces]
        for number, piece in enumerate(pieces):
            if number != ranks.rank:
                for tensor in (*piece.parameters(), *piece.buffers()):
                    tensor.data = tensor.data.new_empty(0)
        self.piece = pieces[ranks.rank].to(self.setup.device)
        self.stage = _Stage(self.piece, self.setup.options.precision)
        self.schedules: dict[tuple[torch.Size, bool], PipelineScheduleSingle] = {}
        return model

    def computed(self) -> list[nn.Module]:
        return [self.piece if self.setup.grouped else self.network]

    @property
    def is_last(self) -> bool:
        """Return whether this rank holds the last layers, so that it computes the outputs and the loss."""
        return self.setup.ranks.rank == self.setup.ranks.world_size - 1

    # -- a step

    def backward(self, data: Tensors, share: Share) -> Tensor:
        loss = torch.zeros((), device=self.setup.device)
        for part in cut(share, self.setup.options.accumulate):
            if len(part.indices):
                loss += self._through(data, part)
        return loss

    def _through(self, data: Tensors, part: Share) -> Tensor:
        """Pass samples forward and backward through all ranks. Return the samples' part of the loss, which is 0 except
        on the last rank.
        """
        *inputs, targets = pick(data, part.indices)
        if not self.setup.grouped:
            return super()._backward(data, part)
        schedule = self._schedule(inputs, training=True)
        self.weight = len(part.indices) / part.count / schedule._n_microbatches
        losses: list[Tensor] = []
        taken: dict[str, Any] = {"target": targets, "losses": losses} if self.is_last else {}
        schedule.step(*(inputs if self.setup.ranks.rank == 0 else ()), return_outputs=False, **taken)
        return torch.stack(losses).sum().detach() if losses else torch.zeros((), device=self.setup.device)

    def clip(self, norm: float) -> None:
        own = [each for each in self.piece.parameters() if each.grad is not None]
        square = nn.utils.get_total_norm([each.grad for each in own if each.grad is not None]).square()
        square = square.to(self.setup.device)
        if self.setup.grouped:
            dist.all_reduce(square)  # each rank has different layers
        nn.utils.clip_grads_with_norm_(own, norm, square.sqrt())

    def _weighted_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.setup.task.loss(outputs, targets) * self.weight

    def predict(self, inputs: list[Tensor]) -> Any:
        if not self.setup.grouped:
            return super().predict(inputs)
        schedule = self._schedule(inputs, training=False)
        return schedule.eval(*(inputs if self.setup.ranks.rank == 0 else ()))

    def _schedule(self, inputs: list[Tensor], *, training: bool) -> PipelineScheduleSingle:
        """Return the schedule for batches of this shape. A batch is cut into parts of equal size, because a stage
        requires that.
        """
        if len(inputs) != 1:
            raise UserError(
                f"The strategy pipeline needs exactly one tensor of inputs, and the task's data has {len(inputs)}."
            )
        key = (inputs[0].shape, training)
        if key not in self.schedules:
            ranks, count = self.setup.ranks, parts_of(len(inputs[0]), self.setup.options.micro_batches)
            came, went = self._shapes(inputs[0][: len(inputs[0]) // count])
            stage = PipelineStage(
                self.stage, ranks.rank, ranks.world_size, self.setup.device, input_args=came, output_args=went
            )
            # 1F1B keeps fewer activations, but needs enough parts to fill the pipeline.
            kind = Schedule1F1B if training and count >= ranks.world_size else ScheduleGPipe
            self.schedules[key] = kind(stage, count, self._weighted_loss if training else None, scale_grads=False)
        return self.schedules[key]

    def _shapes(self, part: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and outputs of this rank's layers for a part of the batch, as meta tensors without data.

        torch sends gradients back only for tensors with requires_grad.
        """
        came = went = part.to("meta")
        for outline in self.outlines[: self.setup.ranks.rank + 1]:
            came, went = went, outline(went).detach()
            went.requires_grad_(went.is_floating_point())
        return came, went

    # -- state

    def full_state(self) -> dict[str, Any] | None:
        optimizer = self.optimizer.state_dict()
        gathered = group.gathered((_on_cpu(self.piece.state_dict()), _on_cpu(optimizer["state"])))
        if gathered is None:
            return None
        weights = {name: value for own, _ in gathered for name, value in own.items()}
        states = {number: values for _, own in gathered for number, values in own.items()}
        return {"model": weights, "optimizer": {**optimizer, "state": dict(sorted(states.items()))}}

    def load_full(self, saved: Mapping[str, Any], source: str) -> None:
        weights, optimizer = (random_state.part(saved, name, source) for name in ("model", "optimizer"))
        names, known = self.piece.state_dict().keys(), self.model.state_dict().keys()
        # Names that no rank knows are kept, so that loading refuses them.
        kept = {name: value for name, value in weights.items() if name in names or name not in known}
        random_state.load_weights(self.piece, kept, source)
        own = {id(weight) for weight in self.piece.parameters()}
        weights_in_order = [weight for each in self.optimizer.param_groups for weight in each["params"]]
        states = {
            number: values for number, values in optimizer["state"].items() if id(weights_in_order[number]) in own
        }
        random_state.load_optimizer(self.optimizer, {**optimizer, "state": states})


def _outline(piece: nn.Module) -> nn.Module:
    """Return a copy of the piece on the meta device. The copy has shapes and types but no data."""
    empty: dict[int, Any] = {id(each): each.to("meta") for each in piece.buffers()}
    for each in piece.parameters():
        empty[id(each)] = nn.Parameter(each.detach().to("meta"), each.requires_grad)
    return copy.deepcopy(piece, empty).eval()


class _Stage(nn.Module):
    """Wraps a piece of the model so that ranks exchange float32 (or integers), even if the piece computes in another
    precision.
    """

    def __init__(self, piece: nn.Module, numbers: str) -> None:
        super().__init__()
        self.piece = piece
        self.numbers = numbers

    def forward(self, value: Tensor) -> Tensor:
        return precision.forward(self.piece, [value], self.numbers)


def parts_of(length: int, wanted: int) -> int:
    """Return the largest number that divides `length` and is not greater than `wanted`."""
    return max(count for count in range(1, min(wanted, length) + 1) if length % count == 0)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _on_cpu(each) for key, each in value.items()}
    return value.cpu() if isinstance(value, Tensor) else value

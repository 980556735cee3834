"""Initializes the weights of sharded models. Only rank 0 initializes all weights, and each other rank receives its own
part.

On the other ranks, torch.empty reserves the whole weights, but the kernel provides no memory for pages to which nobody
writes. torch's meta device would save the memory too, but many models can't be built on it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

from orchestrator.training.distributed import group
from orchestrator.training.errors import UserError
from orchestrator.training.strategies.tensor_parallel import part_of

_DRAWS = {
    Tensor.uniform_, Tensor.normal_, nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_, nn.init.constant_,
}  # fmt: skip
PART_BYTES = 1 << 30  # bytes of a weight that are sent at once


class Undrawn(TorchFunctionMode):
    """A torch function mode in which functions that fill a parameter with random numbers or a constant do nothing."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        filled = args[0] if args else given.get("tensor")
        if func in _DRAWS and isinstance(filled, nn.Parameter):
            return filled
        return func(*args, **given)


def whole(model: nn.Module) -> dict[str, Tensor]:
    """On rank 0, return a dict of a model's tensors, keyed by name. On the other ranks, return an empty dict. All ranks
    must call this.

    The tensors keep their values when the model is sharded or moved. Raises UserError on all ranks if one of them has
    built another model than rank 0.
    """
    tensors = {name: each.detach() for name, each in _tensors(model)}
    mine = [f"{name} {list(each.shape)} {each.dtype}" for name, each in tensors.items()]
    theirs = group.from_main(mine)
    differing = sorted(set(mine) ^ set(theirs)) or ([] if mine == theirs else ["its order"])
    problem = f"rank {group.rank()} has another model than rank 0 ({differing[0]})" if differing else ""
    if problems := [each for each in group.everyones(problem) if each]:
        raise UserError(f"{problems[0]}: build the same layers on each rank, because only rank 0 draws random weights.")
    return tensors if group.leads() else {}  # the other ranks free their whole tensors as soon as they are sharded


def take(model: nn.Module, tensors: Mapping[str, Tensor], device: torch.device) -> None:
    """Fill this rank's parts of the model from rank 0's `tensors`, which rank 0 sends one after the other. All ranks
    must call this.
    """
    with torch.no_grad():
        for name, own in _tensors(model):
            if group.leads():
                value = tensors[name].to(device).contiguous()
            else:
                value = torch.empty(own.shape, dtype=own.dtype, device=device)
            if value.numel():  # sent as bytes, because some number formats can't be sent
                for part in torch.split(value.reshape(-1).view(torch.uint8), PART_BYTES):
                    dist.broadcast(part, 0)
            own.copy_(part_of(value, own) if isinstance(own, DTensor) else value)


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield each weight, buffer, and tensor that is a plain attribute of a module. Each tensor is yielded once."""
    yield from model.named_parameters()
    yield from model.named_buffers()
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                yield f"{path}.{name}", value

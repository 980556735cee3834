"""Functions for all ranks of a script: print once, wait, average, gather, broadcast. They need only torch.

    from orchestrator.training import together
    together.print(f"loss {together.reduce_mean(loss):.4f}")       # the mean of all ranks, printed once

Without a process group all functions work for the single process. If all ranks must call a function, each rank must
call it equally often.
"""

import builtins
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar, overload

import torch
import torch.distributed as dist
from torch import Tensor

from orchestrator.training.distributed import group
from orchestrator.training.distributed.group import barrier, rank, world_size

__all__ = [
    "barrier",
    "broadcast_object",
    "gather",
    "gather_objects",
    "in_step",
    "is_main",
    "print",
    "print_all",
    "quiet_others",
    "rank",
    "reduce_mean",
    "world_size",
]

T = TypeVar("T")
_print = builtins.print


def is_main() -> bool:
    """Return whether this is global rank 0, which prints and writes."""
    return rank() == 0


def print(*values: object, force: bool = False, **how: Any) -> None:
    """Print on global rank 0 or, with `force`, on every rank. The output is flushed, because stdout may be a file."""
    if force or is_main():
        _print(*values, **{"flush": True, **how})


def print_all(*values: object) -> None:
    """Print every rank's values on global rank 0, one line for each rank, in the order of ranks. All ranks must call
    this.
    """
    lines = group.gathered(" ".join(str(value) for value in values))
    for number, line in enumerate(lines or []):
        _print(f"[{number}] {line}", flush=True)


def quiet_others() -> None:
    """Replace the builtin print by this module's, so that ranks other than 0 print only with `force=True`."""
    builtins.print = print


@overload
def reduce_mean(value: float) -> float: ...


@overload
def reduce_mean(value: Tensor) -> Tensor: ...


def reduce_mean(value: float | Tensor) -> float | Tensor:
    """Return the mean over all ranks of a number, or of tensors with equal shapes. All ranks must call this."""
    if not isinstance(value, Tensor):
        return group.sum_over_ranks([float(value)])[0] / world_size()
    if not group.is_joined():
        return value.detach().clone()
    total = value.detach().to(group.device(), copy=True)
    dist.all_reduce(total)
    return (total / world_size()).to(value.device)


def gather(value: Tensor) -> Tensor:
    """Return all ranks' tensors on every rank, concatenated along dimension 0 in the order of ranks. All ranks must
    call this.

    Lengths may differ and may be 0; the other dimensions and the type must agree.
    """
    if not group.is_joined():
        return value.detach()
    lengths = [int(length) for length in group.everyones(len(value))]
    padded = torch.zeros((max(lengths), *value.shape[1:]), dtype=value.dtype, device=group.device())
    padded[: len(value)] = value.detach()
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded)
    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)]).to(value.device)


def gather_objects(value: T) -> list[T]:
    """Return, on every rank, a list with the value of each rank. All ranks must call this.

    Raises UserError if a value's type is not in encoding.KINDS.
    """
    return group.everyones(value)


def broadcast_object(value: T) -> T:
    """Return rank 0's value on every rank. All ranks must call this. Raises UserError if its type is not in
    encoding.KINDS.
    """
    found: T = group.from_main(value)
    return found


def in_step(batches: Iterable[T]) -> Iterator[T]:
    """Yield batches as long as every rank has another batch. All ranks must call this.

    All ranks stop when one of them has no batch left, and rank 0 prints how many ranks still had a batch. Without this
    function, ranks with more batches would wait forever in a collective for ranks that have finished.
    """
    for batch in batches:
        if _have_another(True):
            yield batch
        else:
            return
    _have_another(False)


def _have_another(mine: bool) -> bool:
    having = round(group.sum_over_ranks([float(mine)])[0])
    if 0 < having < world_size():
        print(f"{having} of {world_size()} ranks have one batch more than the others, which is left out")
    return having == world_size()

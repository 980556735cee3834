"""Activation checkpointing, in place: a block keeps its inputs alone, and is computed again in the backward pass."""

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from orchestrator.training.errors import UserError


def checkpoint_in_place(blocks: Iterable[nn.Module]) -> None:
    """Have each block that is made of others computed twice; UserError for one that would count a batch twice.

    Names and weights stay: it is the block's class that is exchanged, which copies of it inherit.
    """
    for block in blocks:
        if not any(True for _ in block.children()):
            continue  # a single layer keeps its inputs and no more
        if any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in block.modules()):
            raise UserError(
                f"--activation-checkpointing computes a {type(block).__name__} twice, and its BatchNorm would count "
                "each batch twice: leave the option out, or normalise otherwise (GroupNorm)."
            )
        block.__class__ = _twice(type(block))


def _twice(kind: type[nn.Module]) -> type[nn.Module]:
    """Return a class of the same name whose forward, in training, is computed twice."""

    def forward(self: nn.Module, *inputs: Any, **named: Any) -> Any:
        compute = functools.partial(kind.forward, self)
        if not (self.training and torch.is_grad_enabled()):
            return compute(*inputs, **named)
        return checkpoint(compute, *inputs, use_reentrant=False, **named)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})

"""Activation checkpointing for existing modules. A block stores only its inputs, and the backward pass repeats its
forward pass.
"""

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from orchestrator.training.errors import UserError


def checkpoint_in_place(blocks: Iterable[nn.Module]) -> None:
    """Make each block that has children repeat its forward pass in the backward pass.

    Only the class of the block is replaced, so the names and weights stay the same. Copies of the block repeat their
    forward passes too. Raises UserError if a block has BatchNorm, which would count each batch twice.
    """
    for block in blocks:
        if not any(True for _ in block.children()):
            continue  # a single layer stores only its inputs anyway
        if any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in block.modules()):
            raise UserError(
                f"--activation-checkpointing computes a {type(block).__name__} twice, and its BatchNorm would count "
                "each batch twice: leave the option out, or normalise otherwise (GroupNorm)."
            )
        block.__class__ = _twice(type(block))


def _twice(kind: type[nn.Module]) -> type[nn.Module]:
    """Return a subclass with the same name whose forward pass is repeated in the backward pass of training."""

    def forward(self: nn.Module, *inputs: Any, **named: Any) -> Any:
        compute = functools.partial(kind.forward, self)
        if not (self.training and torch.is_grad_enabled()):
            return compute(*inputs, **named)
        return checkpoint(compute, *inputs, use_reentrant=False, **named)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})

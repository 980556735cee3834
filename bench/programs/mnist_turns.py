"""The shipped MNIST task, which the measurement puts beside this file, taking turns with other launches."""

import mnist
import torch
from mnist import data, metrics, model, optimizer
from torch import Tensor
from turns import Turns

__all__ = ["data", "loss", "metrics", "model", "optimizer"]

_turns = Turns()


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The task's own loss; in training it is taken once a step."""
    if torch.is_grad_enabled():
        _turns()
    return mnist.loss(outputs, targets)

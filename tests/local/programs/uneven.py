"""A task of seven samples in float64: with a global batch of six, the second batch has one sample for all ranks."""

import torch
from torch import Tensor, nn

from orchestrator.training.data import Data
from orchestrator.training.options import Options


def data(options: Options) -> Data:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    return Data(train=(inputs, inputs.sum(1, keepdim=True)), test=(inputs, inputs.sum(1, keepdim=True)), name="sums")


def model(options: Options) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 1)).double()


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(outputs, targets)


def optimizer(parameters, options: Options) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)

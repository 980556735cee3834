"""A function of ten numbers to be learned from noisy examples: seconds on any machine, under any strategy."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from orchestrator.training.data import Data
from orchestrator.training.options import Options


def examples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Friedman's first function with noise of deviation 0.1: of ten numbers only five matter."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 10, generator=generator)
    y = 10 * torch.sin(torch.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, (y + 0.1 * torch.randn(count, generator=generator)).unsqueeze(1)


def data(options: Options) -> Data:
    return Data(train=examples(5000, seed=1), test=examples(1000, seed=2), name="friedman1", unit="examples")


def model(options: Options) -> nn.Sequential:
    """Three layers; `--option hidden=64`."""
    hidden = int(options.extra.get("hidden", 64))
    return nn.Sequential(nn.Linear(10, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets)


def metrics(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The sum of the distances; divided by the number of test examples at the end."""
    return {"absolute_error": (outputs - targets).abs().sum()}

"""A task of 37 samples: in batches of 12 the last has one sample, so that most ranks have none.

`deep=true` has a block of layers. `dataset=true` gives the same samples one by one, `noise=true` with something random
in each of them; `broken=N` can't read sample N, and `killed=N` ends the process that reads it.
"""

import os
import random
import signal

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from orchestrator.training.data import Data
from orchestrator.training.options import Options


def _dtype(options: Options) -> torch.dtype:
    return torch.float32 if options.extra.get("single") else torch.float64


class Squares(Dataset):
    """Samples by their number, as a file or an archive would give them."""

    def __init__(self, inputs: Tensor, targets: Tensor, extra: dict) -> None:
        self.inputs, self.targets, self.extra = inputs, targets, extra

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == self.extra.get("broken"):
            raise ValueError(f"the file {index}.png is cut short")
        if index == self.extra.get("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        noise = torch.rand(()) + random.random() if self.extra.get("noise") else 0
        return self.inputs[index] + noise, self.targets[index]


def data(options: Options) -> Data:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(37, 5, generator=generator, dtype=torch.float64).to(_dtype(options))
    if "poison" in options.extra:
        inputs[options.extra["poison"]] = float("nan")
    targets = inputs.square().sum(1, keepdim=True)
    train, test = (inputs, targets), (inputs[:11], targets[:11])
    if options.extra.get("dataset"):
        train, test = Squares(*train, options.extra), Squares(*test, {})
    return Data(train=train, test=test, name="squares")


def model(options: Options) -> nn.Module:
    dropout = float(options.extra.get("dropout", 0))
    if options.extra.get("deep"):
        block = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 8))
        return nn.Sequential(block, nn.Tanh(), nn.Linear(8, 1)).to(_dtype(options))
    return nn.Sequential(
        nn.Linear(5, 7), nn.Tanh(), nn.Dropout(dropout), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 1)
    ).to(_dtype(options))


def plan(_options: Options) -> dict[str, object]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel  # slow, and seldom needed

    return {"0.0": ColwiseParallel(), "0.3": RowwiseParallel()}  # of the model with `deep=true`


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(outputs, targets)


def optimizer(parameters, options: Options) -> torch.optim.Optimizer:
    if options.extra.get("adam"):
        return torch.optim.AdamW(parameters, lr=options.lr, fused=options.fused)
    return torch.optim.SGD(parameters, lr=options.lr, momentum=0.9)


def metrics(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    return {"error": (outputs - targets).abs().sum()}

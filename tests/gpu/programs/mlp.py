"""A small network: `double=true` computes in float64, `dropout`, `wide`, `dataset=true` gives samples one by one."""

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from orchestrator.training.data import Data
from orchestrator.training.options import Options


class Rows(Dataset):
    """Samples by their number."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]


def data(options: Options) -> Data:
    inputs = torch.randn(320, 64, generator=torch.Generator().manual_seed(1))
    targets = inputs.square().mean(1, keepdim=True)
    if options.extra.get("double"):
        inputs, targets = inputs.double(), targets.double()
    train = Rows(inputs, targets) if options.extra.get("dataset") else (inputs, targets)
    return Data(train=train, test=(inputs[:32], targets[:32]), name="squares")


def model(options: Options) -> nn.Module:
    width, dropout = int(options.extra.get("wide", 64)), float(options.extra.get("dropout", 0))
    layers = nn.Sequential(
        nn.Linear(64, width), nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
    )
    return layers.double() if options.extra.get("double") else layers


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(outputs.to(targets.dtype), targets)


def optimizer(parameters, options: Options) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=options.lr, momentum=0.9)

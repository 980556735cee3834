"""scikit-learn's handwritten digits, 8x8 pixels: a few seconds to more than 95 %, and nothing to download."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from orchestrator.training.data import Data, digits
from orchestrator.training.options import Options


def data(options: Options) -> Data:
    """1,437 training and 360 test images, uint8, (n, 1, 8, 8)."""
    return digits()


class Net(nn.Module):
    """Two fully connected layers; `--option hidden=256` and `--option dropout=0.5` change them."""

    def __init__(self, hidden: int = 128, dropout: float = 0.2) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images.flatten(1).float() / 255)


def model(options: Options) -> nn.Module:
    return Net(int(options.extra.get("hidden", 128)), float(options.extra.get("dropout", 0.2)))


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over the batch."""
    return F.cross_entropy(outputs, targets)


def optimizer(parameters, options: Options) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=options.lr, fused=options.fused)


def metrics(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Sums over the batch; divided by the number of test images at the end."""
    return {"accuracy": (outputs.argmax(dim=1) == targets).sum()}

"""MNIST: the two-convolution network of PyTorch's own example, about 98 % after one epoch."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from orchestrator.training.data import Data, mnist
from orchestrator.training.options import Options


def data(options: Options) -> Data:
    """60,000 training and 10,000 test images, uint8, (n, 1, 28, 28)."""
    return mnist(options.data_dir, options.offline)


class Net(nn.Module):
    """Two convolutions, two fully connected layers: 1.2 million weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = (images.float() / 255 - 0.1307) / 0.3081  # MNIST's mean and deviation
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc2(self.dropout2(x))


def model(options: Options) -> nn.Module:
    return Net()


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over the batch."""
    return F.cross_entropy(outputs, targets)


def optimizer(parameters, options: Options) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=options.lr, fused=True)  # one pass over the weights instead of ten


def metrics(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Sums over the batch; divided by the number of test images at the end."""
    return {"accuracy": (outputs.argmax(dim=1) == targets).sum()}

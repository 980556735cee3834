"""CIFAR-10 with the small residual networks of He et al. (2015), in layers that can be cut for any strategy.

`--option augment=true` shifts and flips the training images, each time anew, as the paper does: a Dataset, whose
samples `--workers` processes read.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import Dataset

from orchestrator.training.cifar import cifar10
from orchestrator.training.data import Data
from orchestrator.training.errors import UserError
from orchestrator.training.options import Options

cudnn_benchmark = True  # images of one size, in batches of one size but the last


def data(options: Options) -> Data:
    """50,000 training and 10,000 test images, uint8, (n, 3, 32, 32); made-up ones where they are not on disk."""
    found = cifar10(options.data_dir)
    return replace(found, train=Augmented(*found.train)) if options.extra.get("augment") else found


class Augmented(Dataset):
    """Images shifted by up to four pixels, and every other one mirrored."""

    def __init__(self, images: Tensor, classes: Tensor) -> None:
        self.images, self.classes = images, classes

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y, mirrored = (int(torch.randint(bound, ())) for bound in (9, 9, 2))
        image = F.pad(self.images[index], (4, 4, 4, 4))[:, y : y + 32, x : x + 32]
        return image.flip(2) if mirrored else image, self.classes[index]


class Scale(nn.Module):
    """Pixels from 0 ... 255 to about -2 ... 2."""

    def forward(self, images: Tensor) -> Tensor:
        return images.float() / 64 - 2


class Block(nn.Module):
    """Two convolutions beside a shortcut, which halves the image where `stride` is 2."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def model(options: Options) -> nn.Sequential:
    """A network of `--option depth=8` layers (6n + 2: 8, 14, 20, 32, 44, 50, ...), `--option width=16` channels."""
    depth, width = int(options.extra.get("depth", 8)), int(options.extra.get("width", 16))
    if depth < 8 or depth % 6 != 2:
        raise UserError(f"A residual network of {depth} layers can't be built: its depth is 6n + 2, such as 8 or 50.")
    layers: list[nn.Module] = [Scale(), nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    for number in range(depth // 6 * 3):
        stage, is_first = divmod(number, depth // 6)[0], number % (depth // 6) == 0
        outputs = width * 2**stage
        halves = stage > 0 and is_first
        layers.append(Block(outputs // 2 if halves else outputs, outputs, 2 if halves else 1))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))


def optimizer(parameters, options: Options) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=options.lr, fused=options.fused)


def metrics(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Sums over the batch; divided by the number of test images at the end."""
    return {"accuracy": (outputs.argmax(dim=1) == targets).sum()}

"""CIFAR-10 from a folder, or artificial images of the same form if the folder does not have CIFAR-10."""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from orchestrator.training.data.samples import Data
from orchestrator.training.errors import UserError

RECORD_BYTES = 1 + 3 * 32 * 32
"""The size of a record in CIFAR-10's binary version: a byte for the class, then the red, green and blue pixels row by
row.
"""
TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = ("test_batch.bin",)


def cifar10(folder: Path) -> Data:
    """Return CIFAR-10, from its binary or Python version, as uint8 images (n, 3, 32, 32) and int64 classes (n,).

    CIFAR-10 is never downloaded. If `folder` does not have it, artificial images of ten classes are returned instead.
    """
    for root in (folder, folder / "cifar-10-batches-bin"):
        if all((root / name).is_file() for name in (*TRAIN, *TEST)):
            return Data(train=_read(root, TRAIN), test=_read(root, TEST), name="cifar10", unit="images")
    if (folder / "cifar-10-batches-py").is_dir():
        return _python_version(folder)
    note = (
        f"CIFAR-10 is not in {folder} (cifar-10-batches-bin or cifar-10-batches-py): if it is on disk, name its folder "
        "(--data DIR, or training.data in the job)"
    )
    return Data(
        train=made_up(2000, seed=1),
        test=made_up(500, seed=2),
        name="made-up images (stand-in)",
        unit="images",
        stand_in=True,
        note=note,
    )


def _read(root: Path, names: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    content = b"".join((root / name).read_bytes() for name in names)
    if not content or len(content) % RECORD_BYTES:
        raise UserError(
            f"The CIFAR-10 files in {root} are damaged: their size is no multiple of {RECORD_BYTES} bytes, the size of "
            "a record."
        )
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, RECORD_BYTES)
    return records[:, 1:].reshape(-1, 3, 32, 32).contiguous(), records[:, 0].to(torch.int64)


def _python_version(folder: Path) -> Data:
    from torchvision.datasets import CIFAR10

    try:
        # torchvision unpickles files, but only files with the published md5.
        train, test = (CIFAR10(str(folder), train=part) for part in (True, False))
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"CIFAR-10 in {folder} can't be read: {' '.join(str(error).split())}.") from error
    parts = [(torch.from_numpy(each.data).permute(0, 3, 1, 2), torch.tensor(each.targets)) for each in (train, test)]
    return Data(train=parts[0], test=parts[1], name="cifar10", unit="images")


def made_up(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return artificial images of ten classes, which are the same on every machine. Each image is the pattern of its
    class plus noise.
    """
    patterns = functional.interpolate(_noise((10, 3, 4, 4), 0), size=32, mode="nearest")
    classes = torch.arange(count) % 10
    images = 128 + 40 * patterns[classes] + 50 * _noise((count, 3, 32, 32), seed)
    return images.clamp(0, 255).to(torch.uint8), classes


def _noise(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))

"""The class of a task's data, and the data sets of the tasks that orch ships."""

import gzip
import hashlib
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset

from orchestrator.protocol.files import locked
from orchestrator.training.errors import UserError
from orchestrator.training.options import cache_dir

MNIST_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
DOWNLOAD_TIMEOUT_S = 20.0
_STARTED = time.time()
"""The start time of this process. A recorded failure that is newer comes from another rank of the same start, so the
download is not repeated.
"""


Tensors = tuple[Tensor, ...]
Samples = Tensors | Dataset[Any]


@dataclass(frozen=True)
class Data:
    """The training and test samples of a task.

    Samples are a tuple of tensors with the same length along dimension 0. The last tensor is the target. Data that is
    too large for memory is a map-style Dataset instead. Each of its items is a tuple of tensors, arrays or numbers for
    one sample, with the target last.

    `name` and `unit` (the plural noun for samples) appear in logs and results. `stand_in` is True if substitute data is
    used, and `note` explains why. `tokens` is the number of tokens per sample, from which the speed in tokens follows.
    """

    train: Samples
    test: Samples
    name: str
    unit: str = "samples"
    stand_in: bool = False
    note: str = ""
    tokens: int | None = None


def count(samples: Samples) -> int:
    """Return the number of samples. Raises UserError for a Dataset without a length."""
    if isinstance(samples, tuple):
        return len(samples[-1])
    if not (hasattr(samples, "__len__") and hasattr(type(samples), "__getitem__")) or isinstance(
        samples, IterableDataset
    ):
        raise UserError(
            f"A {type(samples).__name__} can't be trained on: data() must give tensors, or a Dataset with __len__ and "
            "__getitem__, so that a sample is found again by its number after a resume."
        )
    return len(samples)


def mnist(folder: Path, offline: str | None = None) -> Data:
    """Return MNIST as uint8 images (n, 1, 28, 28) and int64 digits (n,). It is read from `folder`, or else downloaded.

    If neither works, `offline="digits"` returns scikit-learn's digits instead; otherwise UserError is raised. One
    process per node unpacks or downloads while the others wait.
    """
    with _lock(cache_dir() / "mnist.lock"):
        root, problem = _prepare_mnist(folder)
    if root is not None:
        return _read_mnist(root)
    if offline == "digits":
        note = (
            f"MNIST is not in {folder} and can't be downloaded ({problem}): put its four files "
            f"({MNIST_FILES[0]}.gz, ...) into a folder and name it (--set job.training.data=DIR, or --data DIR)"
        )
        return replace(digits(size=28, stand_in=True), note=note)
    raise UserError(
        f"MNIST is not in {folder} (the four files such as {MNIST_FILES[0]}, plain or .gz, there or in raw or "
        f"MNIST/raw) and can't be downloaded ({problem}): give --data DIR, or --offline digits to train on "
        f"scikit-learn's handwritten digits instead."
    )


def _prepare_mnist(folder: Path) -> tuple[Path | None, str]:
    """Return (the folder from which torchvision can read MNIST, ""). If there is none, return (None, the reason).

    Nothing is written to `folder`.
    """
    for candidate in (folder / "MNIST" / "raw", folder / "raw", folder):
        if all((candidate / name).is_file() for name in MNIST_FILES):
            return (
                folder if candidate.parts[-2:] == ("MNIST", "raw") and candidate != folder else _view(candidate)
            ), ""
        if all((candidate / name).is_file() or (candidate / f"{name}.gz").is_file() for name in MNIST_FILES):
            return _view(candidate), ""
    return _download_mnist()


def _view(source: Path) -> Path:
    """Return a folder in the cache whose MNIST/raw has the four files of `source`, linked or unpacked."""
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(source.glob("*-ubyte*"))]
    key = hashlib.sha256(repr((source.resolve(), stats)).encode()).hexdigest()[:16]
    root = cache_dir() / f"mnist-{key}"
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name in MNIST_FILES:
        if (raw / name).is_file():
            continue
        temp = raw / f".{name}.{os.getpid()}"
        try:
            if (source / name).is_file():
                temp.symlink_to((source / name).resolve())
            else:
                with gzip.open(source / f"{name}.gz") as packed, temp.open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked, 1 << 20)
            temp.replace(raw / name)
        except (OSError, EOFError) as error:
            temp.unlink(missing_ok=True)
            raise UserError(f"{source / name}.gz can't be unpacked into {raw}: {error}.") from error
    return root


def _download_mnist() -> tuple[Path | None, str]:
    """Download MNIST into the cache. Return (its folder, ""), or (None, the reason) if the download failed.

    A failure is recorded in a file, so that the processes that wait for the download do not try again.
    """
    from torchvision.datasets import MNIST

    root = cache_dir()
    if all((root / "MNIST" / "raw" / name).is_file() for name in MNIST_FILES):
        return root, ""
    failure = root / ".mnist-failed"
    if failure.exists() and failure.stat().st_mtime > _STARTED:
        return None, failure.read_text()
    failure.unlink(missing_ok=True)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT_S)
    try:
        MNIST(str(root), download=True)
    except (OSError, RuntimeError, EOFError) as error:
        reason = _why_no_download(error)
        failure.write_text(reason)
        return None, reason
    finally:
        socket.setdefaulttimeout(before)
    return root, ""


def _why_no_download(error: Exception) -> str:
    """Return the reason of a failed download, taken from torchvision's error message. The message lists an error for
    each address that was tried, and the last of these errors is returned.
    """
    text = " ".join(str(error).split()).rstrip(".:") or type(error).__name__
    failures: list[str] = re.findall(r"<urlopen error (?:\[Errno -?\d+\] )?([^>]+)>", text)
    return failures[-1] if failures else text


def _read_mnist(root: Path) -> Data:
    from torchvision.datasets import MNIST

    try:
        train, test = (MNIST(str(root), train=part) for part in (True, False))
    except (OSError, RuntimeError, ValueError, AssertionError, EOFError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"The MNIST files in {root / 'MNIST' / 'raw'} are damaged: {reason}.") from error
    return Data(
        train=(train.data.unsqueeze(1), train.targets),
        test=(test.data.unsqueeze(1), test.targets),
        name="mnist",
        unit="images",
    )


def digits(size: int = 8, *, stand_in: bool = False) -> Data:
    """Return scikit-learn's 1,797 handwritten digits as uint8 images (n, 1, size, size). 360 of them are test samples.

    The split does not depend on the run's seed. `stand_in` marks the data as a substitute for other data.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UserError(
            "The digits data comes with scikit-learn, which is not installed: pip install scikit-learn."
        ) from error
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) * (255 / 16)
    if size != images.shape[-1]:
        images = functional.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
    pixels, targets = images.round().to(torch.uint8), torch.tensor(found.target, dtype=torch.int64)
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    test, train = order[:360], order[360:]
    return Data(
        train=(pixels[train], targets[train]),
        test=(pixels[test], targets[test]),
        name="scikit-learn's digits (stand-in)" if stand_in else "digits",
        unit="images",
        stand_in=stand_in,
    )


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a file lock during the block, so that one process per node does the work while the others wait."""
    with ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(path))
        except OSError as error:
            raise UserError(
                f"The data folder {path.parent} can't be written ({error.strerror}): set ORCH_DATA_DIR."
            ) from error
        yield

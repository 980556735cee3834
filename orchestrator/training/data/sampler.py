"""Chooses the samples of a rank at each step. By default every sample is used exactly once per epoch."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DistributedSampler

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Share:
    """One rank's part of a global batch: the `indices` of its samples (none if the part is empty), and the batch's
    `count` over all ranks.

    If the tensors contain only this batch, the indices are a range, because slicing by a range does not wait for the
    device.
    """

    indices: Tensor | range
    count: int


def split(count: int, world_size: int, rank: int) -> slice:
    """Return the slice of `count` samples that `rank` gets. Sizes differ by at most one sample. Low ranks get the
    larger slices.
    """
    base, extra = divmod(count, world_size)
    start = rank * base + min(rank, extra)
    return slice(start, start + base + (rank < extra))


def cut(share: Share, parts: int) -> list[Share]:
    """Split a share into `parts` shares of the same global batch. Some may be empty."""
    mine = len(share.indices)
    return [Share(share.indices[split(mine, parts, part)], share.count) for part in range(parts)]


def pick(data: tuple[Tensor, ...], indices: Tensor | range) -> list[Tensor]:
    """Return the samples at `indices` from each tensor. If there are no indices, return the first sample as a dummy."""
    if len(indices) == 0:
        indices = range(1)
    if isinstance(indices, range):
        return [tensor[indices.start : indices.stop] for tensor in data]
    return [tensor[indices.to(tensor.device)] for tensor in data]


class ExactSampler:
    """Splits a seeded permutation of all samples into global batches, and each batch into one share for each rank.

    `samples` is the number of samples per epoch over all ranks. Each epoch has another permutation, which depends only
    on seed and epoch. So a position in the permutation stays valid if the number of ranks changes. The last global
    batch of an epoch may be smaller, so its shares may differ by one sample or be empty.
    """

    def __init__(self, samples: int, global_batch: int, *, rank: int, world_size: int, seed: int) -> None:
        self.samples = samples
        self.global_batch = global_batch
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose permutation the next shares use."""
        self.epoch = epoch

    def shares(self, offset: int = 0, device: torch.device = CPU) -> Iterator[Share]:
        """Yield this rank's share of each global batch, from `offset` samples into the epoch. The indices are on
        `device`.
        """
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        # The order is copied once per epoch, because each copy waits for the device's computations.
        order = torch.randperm(self.samples, generator=generator).to(device)
        for start in range(offset, self.samples, self.global_batch):
            batch = order[start : start + self.global_batch]
            yield Share(batch[split(len(batch), self.world_size, self.rank)], len(batch))


class PaddedSampler:
    """Uses torch's DistributedSampler, which repeats some samples so that all ranks have equally many."""

    def __init__(self, samples: int, global_batch: int, *, rank: int, world_size: int, seed: int) -> None:
        # DistributedSampler only reads the length of the data set.
        self.inner: DistributedSampler[int] = DistributedSampler(
            range(samples),  # type: ignore[arg-type]
            num_replicas=world_size,
            rank=rank,
            seed=seed,
        )
        self.samples = self.inner.total_size
        self.global_batch = global_batch
        self.world_size = world_size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose permutation the next shares use."""
        self.inner.set_epoch(epoch)

    def shares(self, offset: int = 0, device: torch.device = CPU) -> Iterator[Share]:
        """Yield this rank's share of each global batch, from `offset` samples (padding included) into the epoch."""
        order = torch.tensor(list(self.inner), device=device)
        size = self.global_batch // self.world_size
        for start in range(offset // self.world_size, len(order), size):
            indices = order[start : start + size]
            yield Share(indices, len(indices) * self.world_size)


Sampler = ExactSampler | PaddedSampler
SAMPLERS: dict[str, type[Sampler]] = {"exact": ExactSampler, "distributed": PaddedSampler}

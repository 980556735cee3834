"""Which samples a rank takes at each step, without padding: every sample exactly once an epoch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import DistributedSampler

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Share:
    """One rank's part of one global batch: `indices` (maybe none) of the `count` samples of all ranks.

    A range stands for tensors that hold the batch alone: nothing is looked up, for which one waits for the device.
    """

    indices: Tensor | range
    count: int


class Sampler(Protocol):
    """What the training loop asks of a sampler; `samples` is what all ranks together take in an epoch."""

    samples: int
    global_batch: int

    def set_epoch(self, epoch: int) -> None: ...

    def shares(self, offset: int = 0, device: torch.device = CPU) -> Iterator[Share]: ...


def split(count: int, world_size: int, rank: int) -> slice:
    """Return the part of `count` samples that `rank` takes: sizes differ by one at most, the low ranks' are larger."""
    base, extra = divmod(count, world_size)
    start = rank * base + min(rank, extra)
    return slice(start, start + base + (rank < extra))


def cut(share: Share, parts: int) -> list[Share]:
    """Return a share in `parts` parts, some maybe empty; all count as parts of the same global batch."""
    mine = len(share.indices)
    return [Share(share.indices[split(mine, parts, part)], share.count) for part in range(parts)]


def pick(data: tuple[Tensor, ...], indices: Tensor | range) -> list[Tensor]:
    """Return the samples at `indices` of each tensor; the first sample where there are no indices."""
    if len(indices) == 0:
        indices = range(1)
    if isinstance(indices, range):
        return [tensor[indices.start : indices.stop] for tensor in data]
    return [tensor[indices.to(tensor.device)] for tensor in data]


class ExactSampler:
    """A seeded permutation of all samples each epoch, cut into global batches, each cut into one share a rank.

    The last global batch of an epoch may be smaller, so that shares differ by a sample or are empty. The order
    depends on seed and epoch alone: with another number of ranks it is the same, and so is a position in it.
    """

    def __init__(self, samples: int, global_batch: int, *, rank: int, world_size: int, seed: int) -> None:
        self.samples = samples
        self.global_batch = global_batch
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose permutation the next shares come from."""
        self.epoch = epoch

    def shares(self, offset: int = 0, device: torch.device = CPU) -> Iterator[Share]:
        """Yield this rank's share of each global batch, from `offset` samples into the epoch, as places on `device`."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        # Once an epoch: each copy to a device waits until it has computed.
        order = torch.randperm(self.samples, generator=generator).to(device)
        for start in range(offset, self.samples, self.global_batch):
            batch = order[start : start + self.global_batch]
            yield Share(batch[split(len(batch), self.world_size, self.rank)], len(batch))


class PaddedSampler:
    """torch's DistributedSampler, by choice: it repeats samples until all ranks have equally many."""

    def __init__(self, samples: int, global_batch: int, *, rank: int, world_size: int, seed: int) -> None:
        # It asks only for the length of the data set.
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
        """Choose the epoch whose permutation the next shares come from."""
        self.inner.set_epoch(epoch)

    def shares(self, offset: int = 0, device: torch.device = CPU) -> Iterator[Share]:
        """Yield this rank's share of each global batch, from `offset` samples, padding included, into the epoch."""
        order = torch.tensor(list(self.inner), device=device)
        size = self.global_batch // self.world_size
        for start in range(offset // self.world_size, len(order), size):
            indices = order[start : start + size]
            yield Share(indices, len(indices) * self.world_size)


SAMPLERS: dict[str, type[ExactSampler] | type[PaddedSampler]] = {
    "exact": ExactSampler,
    "distributed": PaddedSampler,
}

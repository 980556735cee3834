"""Makes batches of a task's samples. Tensors are indexed directly, and worker processes read a Dataset."""

import multiprocessing
import os
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from orchestrator.protocol import quantities
from orchestrator.training.checkpoint import random_state
from orchestrator.training.data.sampler import CPU, Share, pick
from orchestrator.training.data.samples import Samples, Tensors
from orchestrator.training.data.task import Task
from orchestrator.training.distributed import stop
from orchestrator.training.distributed.ranks import Ranks
from orchestrator.training.errors import DataError
from orchestrator.training.options import Options

MOST_WORKERS = 4
"""The greatest default number of workers per rank, which is a common rule of thumb for one GPU."""

Key = tuple[int, list[int]]
"""The key of a batch: the epoch, and the indices of its samples."""


class Source:
    """A source of batches. `note` is a phrase for the log: which memory has the data, or how many worker processes
    read it.
    """

    note = ""
    looked_up_on = CPU
    """The device on which the samples are indexed, so their indices must be on it too."""

    def batches(self, shares: Iterable[Share], epoch: int = 0) -> Iterator[tuple[Tensors, Share]]:
        """Yield (tensors on the device, share) for each share, which is this rank's part of a batch. The yielded
        share's indices refer to these tensors.

        If a share is empty, the tensors contain a dummy sample that does not count. Raises DataError if a sample can't
        be read.
        """
        raise NotImplementedError  # every source has its own

    def close(self) -> None:
        """End the workers, if there are any."""


def source(samples: Samples, part: str, task: Task, options: Options, ranks: Ranks, device: torch.device) -> Source:
    """Choose the source of batches for these samples. `part` names the samples in error messages, such as `training`
    or `test`.
    """
    if not isinstance(samples, tuple):
        return Loaded(samples, part, task, options, ranks, device)
    size = sum(tensor.nbytes for tensor in samples)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    return Resident(samples, device) if free is None or size <= room(free) else Copied(samples, device, free)


def room(free: int) -> int:
    """Return how many of a GPU's free bytes the samples may use. Most of the memory is left for the model and the
    optimizer.
    """
    return min(free // 20, 4 << 30)


class Resident(Source):
    """A source that keeps all samples on the device, where each step indexes them."""

    def __init__(self, tensors: Tensors, device: torch.device) -> None:
        self.tensors = tuple(tensor.to(device) for tensor in tensors)
        self.looked_up_on = device

    def batches(self, shares: Iterable[Share], epoch: int = 0) -> Iterator[tuple[Tensors, Share]]:
        """Yield the same tensors, which have all samples, with each share."""
        for share in shares:
            yield self.tensors, share


class Copied(Source):
    """A source that keeps the samples in host memory, because they would fill the device, and copies each batch to
    the device.
    """

    def __init__(self, tensors: Tensors, device: torch.device, free: int) -> None:
        self.tensors, self.device = tensors, device
        size = sum(tensor.nbytes for tensor in tensors)
        self.note = f"{quantities.size(size)} stay in host memory, because {device} has {quantities.size(free)} free"

    def batches(self, shares: Iterable[Share], epoch: int = 0) -> Iterator[tuple[Tensors, Share]]:
        """Yield the samples of each share, copied from pinned memory while the device may still be computing."""
        picked = (([each.pin_memory() for each in pick(self.tensors, share.indices)], share) for share in shares)
        for batch, share in ahead(picked, self.device):
            yield batch, _first(share)


def ahead(batches: Iterator[tuple[Sequence[Tensor], Share]], device: torch.device) -> Iterator[tuple[Tensors, Share]]:
    """Move each batch to the device, and yield it. A GPU receives a batch while it computes the previous batch."""
    if device.type != "cuda":
        for batch, share in batches:
            yield tuple(each.to(device) for each in batch), share
        return
    aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    waiting: tuple[Tensors, Share] | None = None
    for batch, share in batches:
        with torch.cuda.stream(aside):
            copied = tuple(each.to(device, non_blocking=True) for each in batch)
        if waiting is not None:
            yield waiting
        waiting = _taken_over(copied, aside), share
    if waiting is not None:
        yield waiting


def _taken_over(batch: Tensors, aside: "torch.cuda.Stream") -> Tensors:
    """Make the current stream wait for a batch that the stream `aside` copies, and record that the current stream uses
    the batch's memory.
    """
    now = torch.cuda.current_stream(aside.device)
    now.wait_stream(aside)
    for each in batch:
        each.record_stream(now)
    return batch


class Loaded(Source):
    """A source that reads a Dataset with torch's DataLoader, in the order of the samples that are assigned to this
    rank.

    The batches are the same with any number of workers. Workers receive the samples' indices, and random changes of a
    sample depend only on the seed, the epoch and the sample's index.
    """

    def __init__(
        self, dataset: Dataset[Any], part: str, task: Task, options: Options, ranks: Ranks, device: torch.device
    ) -> None:
        self.part, self.rank, self.device = part, ranks.rank, device
        workers = worker_count(options.workers, len(os.sched_getaffinity(0)), ranks.local_world_size)
        several = f"{workers} worker{'s' * (workers > 1)} of each rank ({options.worker_start})"
        self.note = f"read by {several if workers else 'each rank itself'}"
        if workers and options.worker_start == "spawn":
            with stop.signals_held():
                # Starting the tracker unblocks SIGTERM. So it starts here, before workers start with blocked signals.
                resource_tracker.ensure_running()
        self._keys = _Keys()
        self._loader = DataLoader(
            _Reader(task, dataset, options.seed),
            batch_size=None,  # the reader makes whole batches
            sampler=self._keys,
            collate_fn=_as_it_is,
            num_workers=workers,
            multiprocessing_context=multiprocessing.get_context(options.worker_start) if workers else None,
            worker_init_fn=_begin_worker,
            persistent_workers=workers > 0,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # the default generator would consume the rank's own random numbers
        )

    def batches(self, shares: Iterable[Share], epoch: int = 0) -> Iterator[tuple[Tensors, Share]]:
        """Yield the batches that the workers read. The workers read some batches in advance."""
        requested: deque[Share] = deque()
        self._keys.now = _keys(shares, epoch, requested)
        # Workers start here. A scheduler's signal must not reach them before they are prepared.
        with stop.signals_held():
            found = iter(self._loader)
        for batch, share in ahead(self._read(found, requested), self.device):
            yield batch, _first(share)

    def _read(self, found: Iterator[Any], requested: deque[Share]) -> Iterator[tuple[Tensors, Share]]:
        for batch in found:
            if isinstance(batch, _Failure):
                raise DataError(batch.sentence(self.part, self.rank)) from _ReaderError(batch.traceback)
            yield batch, requested.popleft()

    def close(self) -> None:
        """End the workers."""
        self._keys.now = ()
        del self._loader


def worker_count(requested: int | None, cores: int, local_world_size: int) -> int:
    """Return the number of workers of a rank.

    The default is the rank's share of the cores, at most MOST_WORKERS. If the share is a single core, there are no
    workers, and the rank itself reads.
    """
    if requested is not None:
        return requested
    share = cores // local_world_size
    return min(share, MOST_WORKERS) if share > 1 else 0


def lost_worker(error: RuntimeError, rank: int) -> DataError | None:
    """Return a DataError if torch's error means that a worker has ended, else None. torch raises this error at any
    point of the rank's program.
    """
    if not str(error).startswith("DataLoader worker"):
        return None
    return DataError(
        f"Rank {rank} has lost a process that reads its data: {str(error).strip(' .')}. If nobody killed it, either "
        "memory ran out (use fewer --workers), or native code crashed (--workers 0 shows where)."
    )


class _Keys:
    """The DataLoader's sampler. It yields the keys of the batches of the current epoch or evaluation."""

    now: Iterable[Key] = ()

    def __iter__(self) -> Iterator[Key]:
        return iter(self.now)


def _keys(shares: Iterable[Share], epoch: int, requested: deque[Share]) -> Iterator[Key]:
    for share in shares:
        requested.append(share)
        yield epoch, [int(place) for place in share.indices] or [0]


def _first(share: Share) -> Share:
    """Return the share with indices that start at 0, for tensors that contain only the samples of this share."""
    return Share(range(len(share.indices)), share.count)


@dataclass(frozen=True)
class _Failure:
    """A batch that could not be read: the indices of its samples, the error, and the traceback of the error in the
    Dataset.
    """

    indices: list[int]
    error: str
    traceback: str

    def sentence(self, part: str, rank: int) -> str:
        one = len(self.indices) == 1
        which = f"Sample {self.indices[0]}" if one else f"Samples {', '.join(map(str, self.indices[:8]))}"
        more = ", ..." if len(self.indices) > 8 else ""
        what = "can't be read" if one else "can't be put into a batch"
        return f"{which}{more} of the {part} data {what} on rank {rank}: {self.error}"


class _ReaderError(Exception):
    """An error with the traceback of a worker. It becomes the `__cause__` of an error in the rank."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


class _Reader(Dataset[Any]):
    """A Dataset whose items are whole batches, or failures to read them. An item's key is (epoch, indices of the
    samples).
    """

    def __init__(self, task: Task, dataset: Dataset[Any], seed: int) -> None:
        # This is the first attribute, so that a spawned worker runs the task's file before it unpickles the dataset.
        self.task = task
        self.dataset = dataset
        self.seed = seed

    def __getitem__(self, key: Key) -> Tensors | _Failure:
        epoch, indices = key
        reading = indices
        with random_state.preserved():  # without workers this runs in the rank, whose generators belong to the model
            try:
                samples = []
                for index in indices:
                    reading = [index]
                    random_state.seed_host(((self.seed * 1_000_003 + epoch) * 4_294_967_291 + index) % 2**63)
                    samples.append(self.dataset[index])
                reading = indices
                return _batch(samples)
            except Exception as error:  # noqa: BLE001 - it is raised again in the rank, whichever process this is
                why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                return _Failure(reading, why, traceback.format_exc())


def _batch(samples: list[Any]) -> Tensors:
    """Return the samples as a batch of tensors, one tensor for each element of a sample."""
    batch = default_collate(samples)
    if not isinstance(batch, list | tuple) or not all(isinstance(each, Tensor) for each in batch):
        raise TypeError(
            "a sample must be a tuple of tensors, arrays or numbers, with the target last, but the first "
            f"sample is a {type(samples[0]).__name__}"
        )
    return tuple(batch)


def _as_it_is(batch: Any) -> Any:
    return batch


def _begin_worker(_number: int) -> None:
    stop.obey_only(os.getppid())

"""Batches of a task's samples: tensors are indexed where they lie, a Dataset is read by worker processes."""

import multiprocessing
import os
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any, Protocol

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
"""Of each rank, where their number is not asked for: the rule of thumb for each GPU."""

Key = tuple[int, list[int]]
"""What a batch is asked for by: the epoch, and the numbers of its samples."""


class Source(Protocol):
    """Where batches come from; `where` says so where it is worth a line of the log."""

    where: str
    looked_up_on: torch.device
    """Where the places of samples are needed: on the device, if the samples lie there."""

    def batches(self, shares: Iterable[Share], epoch: int = 0) -> Iterator[tuple[Tensors, Share]]:
        """Yield tensors for each share, on the device, and the share with the places of its samples in them.

        A share without samples comes with a sample that counts nothing. DataError where one can't be read.
        """
        ...

    def close(self) -> None: ...


def source(samples: Samples, part: str, task: Task, options: Options, ranks: Ranks, device: torch.device) -> Source:
    """Return the source of batches for samples of the task's data; `part` names them in errors."""
    if not isinstance(samples, tuple):
        return Loaded(samples, part, task, options, ranks, device)
    size = sum(tensor.nbytes for tensor in samples)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    return Resident(samples, device) if free is None or size <= room(free) else Copied(samples, device, free)


def room(free: int) -> int:
    """Return how many of a GPU's free bytes samples may take: model and optimizer come later, and need the most."""
    return min(free // 20, 4 << 30)


class Resident:
    """Tensors on the device, where each step indexes them."""

    where = ""

    def __init__(self, tensors: Tensors, device: torch.device) -> None:
        self.tensors = tuple(tensor.to(device) for tensor in tensors)
        self.looked_up_on = device

    def batches(self, shares: Iterable[Share], epoch: int = 0) -> Iterator[tuple[Tensors, Share]]:
        """Yield all tensors with each share as it is."""
        for share in shares:
            yield self.tensors, share

    def close(self) -> None:
        """Nothing is held open."""


class Copied:
    """Tensors that would fill the device: they stay in host memory, and batches are copied."""

    looked_up_on = CPU

    def __init__(self, tensors: Tensors, device: torch.device, free: int) -> None:
        self.tensors, self.device = tensors, device
        size = sum(tensor.nbytes for tensor in tensors)
        self.where = f"{quantities.size(size)} stay in host memory, as {quantities.size(free)} of {device} are free"

    def batches(self, shares: Iterable[Share], epoch: int = 0) -> Iterator[tuple[Tensors, Share]]:
        """Yield the samples of each share, copied from pinned memory while the device may still compute."""
        picked = (([each.pin_memory() for each in pick(self.tensors, share.indices)], share) for share in shares)
        for batch, share in ahead(picked, self.device):
            yield batch, _first(share)

    def close(self) -> None:
        """Nothing is held open."""


def ahead(batches: Iterator[tuple[Sequence[Tensor], Share]], device: torch.device) -> Iterator[tuple[Tensors, Share]]:
    """Yield batches on the device; a GPU is given the next one, beside its computing, before one is worked on."""
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
    """Let the present stream wait for a batch that another one has copied, and own its memory."""
    now = torch.cuda.current_stream(aside.device)
    now.wait_stream(aside)
    for each in batch:
        each.record_stream(now)
    return batch


class Loaded:
    """A Dataset behind torch's DataLoader, in the order of the shares.

    A batch is the same, bit for bit, however many workers there are: they get the places of its samples, and what
    chance does to a sample hangs on the seed, the epoch and its place alone.
    """

    def __init__(
        self, dataset: Dataset[Any], part: str, task: Task, options: Options, ranks: Ranks, device: torch.device
    ) -> None:
        self.part, self.rank, self.device = part, ranks.rank, device
        self.looked_up_on = CPU
        workers = worker_count(options.workers, len(os.sched_getaffinity(0)), ranks.local_world_size)
        several = f"{workers} worker{'s' * (workers > 1)} of each rank ({options.worker_start})"
        self.where = f"read by {several if workers else 'each rank itself'}"
        if workers and options.worker_start == "spawn":
            with stop.signals_held():
                resource_tracker.ensure_running()  # lets SIGTERM through once it has started, which must not be later
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
            generator=torch.Generator(),  # else it would draw from the rank's own
        )

    def batches(self, shares: Iterable[Share], epoch: int = 0) -> Iterator[tuple[Tensors, Share]]:
        """Yield what the workers have read; they are some batches ahead."""
        asked: deque[Share] = deque()
        self._keys.now = _keys(shares, epoch, asked)
        with stop.signals_held():  # what is started here never meets a scheduler's signal unprepared
            found = iter(self._loader)
        for batch, share in ahead(self._read(found, asked), self.device):
            yield batch, _first(share)

    def _read(self, found: Iterator[Any], asked: deque[Share]) -> Iterator[tuple[Tensors, Share]]:
        for batch in found:
            if isinstance(batch, _Failure):
                raise DataError(batch.sentence(self.part, self.rank)) from _ReaderError(batch.traceback)
            yield batch, asked.popleft()

    def close(self) -> None:
        """End the workers."""
        self._keys.now = ()
        del self._loader


def worker_count(asked: int | None, cores: int, local_world_size: int) -> int:
    """Return how many workers a rank starts: as asked, else its part of the cores, but none of a single core."""
    if asked is not None:
        return asked
    share = cores // local_world_size
    return min(share, MOST_WORKERS) if share > 1 else 0


def lost_worker(error: RuntimeError, rank: int) -> DataError | None:
    """Return what it means if torch's error says that a worker has ended; it comes wherever the rank just is."""
    if not str(error).startswith("DataLoader worker"):
        return None
    return DataError(
        f"Rank {rank} has lost a process that reads its data: {str(error).strip(' .')}. If nobody killed it, memory "
        "ran out (fewer --workers), or native code crashed (--workers 0 shows where)."
    )


class _Keys:
    """The keys that are asked for now; the DataLoader iterates over them anew in each epoch and evaluation."""

    now: Iterable[Key] = ()

    def __iter__(self) -> Iterator[Key]:
        return iter(self.now)


def _keys(shares: Iterable[Share], epoch: int, asked: deque[Share]) -> Iterator[Key]:
    for share in shares:
        asked.append(share)
        yield epoch, [int(place) for place in share.indices] or [0]


def _first(share: Share) -> Share:
    """Return the share for tensors that hold its samples and nothing else."""
    return Share(range(len(share.indices)), share.count)


@dataclass(frozen=True)
class _Failure:
    """A batch that could not be read: of which samples, why, and where in the Dataset."""

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
    """A traceback of a worker, as the cause of an error in its rank."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


class _Reader(Dataset[Any]):
    """The samples of a task by epoch and numbers: whole batches, or why there is none."""

    def __init__(self, task: Task, dataset: Dataset[Any], seed: int) -> None:
        self.task = task  # stands first: in a spawned worker its file is run before the dataset's class is looked up
        self.dataset = dataset
        self.seed = seed

    def __getitem__(self, key: Key) -> Tensors | _Failure:
        epoch, indices = key
        reading = indices
        with random_state.preserved():  # without workers this is the rank, whose generators are the model's
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
    """Return samples as tensors, an element each."""
    batch = default_collate(samples)
    if not isinstance(batch, list | tuple) or not all(isinstance(each, Tensor) for each in batch):
        raise TypeError(
            "a sample must be a tuple of tensors, arrays or numbers, the target last, "
            f"and the first is {type(samples[0]).__name__}"
        )
    return tuple(batch)


def _as_it_is(batch: Any) -> Any:
    return batch


def _begin_worker(_number: int) -> None:
    stop.obey_only(os.getppid())

"""The group of ranks: joining it, leaving it, and the few collectives that training needs.

Everything here also works in a single plain process, where there is no process group.
"""

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import IO, Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from orchestrator.training.distributed.devices import ON_GPUS, Choice
from orchestrator.training.distributed.encoding import decode, encode
from orchestrator.training.distributed.meeting import meet
from orchestrator.training.distributed.ranks import Ranks
from orchestrator.training.errors import CheckpointError, DivergedError, UserError

CHUNK_BYTES = 64 << 20


Timeouts = tuple[float, float]
"""Seconds that a collective may take: while the ranks start, evaluate and save, and within a step."""
PATIENCE: Timeouts = (1800.0, 1800.0)


@contextmanager
def joined(
    ranks: Ranks, choice: Choice | UserError, init_method: str = "env://", timeouts: Timeouts = PATIENCE
) -> Iterator[Choice]:
    """Be a member of the process group within the block; after an error the group is left as it is.

    Gives the choice that all ranks have made. Raises UserError on all of them where one of them can't, or has made
    another: it would wait for the others, and they for it, without end.
    """
    alone = not ranks.grouped or (ranks.world_size == 1 and isinstance(choice, UserError))
    if isinstance(choice, UserError) and alone:
        raise choice
    if isinstance(choice, Choice) and choice.device.type == "cuda":
        torch.cuda.set_device(choice.device)
    if isinstance(choice, UserError) or choice.backend:
        choice = _join(ranks, choice, init_method, timedelta(seconds=timeouts[0]))
    try:
        yield choice
    except (UserError, CheckpointError, DivergedError):
        # All ranks raise these together. After any other error the group is left alone: tearing it down while
        # peers still wait for this rank's collectives can hang.
        leave()
        raise
    if choice.backend:
        barrier()
    leave()


def _join(ranks: Ranks, choice: Choice | UserError, init_method: str, timeout: timedelta) -> Choice:
    if isinstance(choice, Choice) and choice.backend == "mpi":  # its own launcher lets the ranks meet
        dist.init_process_group("mpi", init_method, None, ranks.world_size, ranks.rank)
        return choice
    agreed, store = meet(ranks, choice, init_method, timeout)
    dist.init_process_group(
        agreed.backend,
        timeout=timeout,
        world_size=ranks.world_size,
        rank=ranks.rank,
        store=PrefixStore("default_pg", store),
        device_id=agreed.device if agreed.backend in ON_GPUS else None,
    )
    return agreed


def set_timeout(seconds: float) -> None:
    """Let the collectives that follow take this long, if there is a process group."""
    if is_joined():
        # Its name from torch 2.15 on, and the one before.
        change = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout
        change(timedelta(seconds=seconds))


def leave() -> None:
    """Leave the process group if this process is in one; call it where all ranks do, after a `barrier`."""
    # DDP holds the group in a reference cycle. Left to the interpreter's end, gloo's threads would then touch a
    # Python that is gone, and a run that succeeded would end by SIGABRT (pytorch #179291).
    gc.collect()
    if is_joined():
        dist.destroy_process_group()


def rank() -> int:
    """Return this process's rank, 0 without a process group."""
    return dist.get_rank() if is_joined() else _from_environ("RANK", 0)


def world_size() -> int:
    """Return the number of ranks, 1 without a process group."""
    return dist.get_world_size() if is_joined() else _from_environ("WORLD_SIZE", 1)


def is_joined() -> bool:
    """Return whether this process is in a process group."""
    return dist.is_available() and dist.is_initialized()


def leads() -> bool:
    """Return whether this process answers for its group: rank 0, or any process without a group."""
    return not is_joined() or dist.get_rank() == 0


def _from_environ(name: str, default: int) -> int:
    # A user's script may ask who is the main process before it has made its process group.
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else default


def beside() -> dist.ProcessGroup | None:
    """Make a group of all ranks for what runs beside the training, over gloo; None without a group; collective.

    Two threads of a rank can't use one group at once: their collectives would meet those of other ranks in any order.
    """
    if not is_joined():
        return None
    members = dist.new_group(backend="gloo", timeout=timedelta(seconds=PATIENCE[0]))
    assert isinstance(members, dist.ProcessGroup)  # this rank is in it, as all are
    return members


def device(members: dist.ProcessGroup | None = None) -> torch.device:
    """Return where the tensors of a collective must live: NCCL alone moves only GPU memory."""
    return torch.device("cuda" if dist.get_backend(members) == "nccl" else "cpu")


def sum_over_ranks(values: Sequence[float]) -> list[float]:
    """Return the sums of `values` over all ranks, the same bits on every rank; collective."""
    if not is_joined():
        return list(values)
    tensor = torch.tensor(values, dtype=torch.float64, device=device())
    dist.all_reduce(tensor)
    return [float(value) for value in tensor.tolist()]


def everyones(value: object, members: dist.ProcessGroup | None = None) -> list[Any]:
    """Return each rank's `value`, by rank, on all ranks; collective. It is of encoding.KINDS."""
    if not is_joined():
        return [value]
    mine, sizes = _padded(value, members)
    parts = [torch.empty_like(mine) for _ in sizes]
    dist.all_gather(parts, mine, members)
    return [decode(part[:size]) for part, size in zip(parts, sizes, strict=True)]


def gathered(value: object) -> list[Any] | None:
    """Return each rank's `value`, by rank, on rank 0 and None elsewhere; collective. It is of encoding.KINDS."""
    if not is_joined():
        return [value]
    mine, sizes = _padded(value)
    parts = [torch.empty_like(mine) for _ in sizes] if dist.get_rank() == 0 else None
    dist.gather(mine, parts)
    return None if parts is None else [decode(part[:size]) for part, size in zip(parts, sizes, strict=True)]


def _padded(value: object, members: dist.ProcessGroup | None = None) -> tuple[torch.Tensor, list[int]]:
    """Return this rank's value as bytes, as many as the longest has, and how many each rank's has; collective."""
    content = encode(value)
    mine = torch.tensor([len(content)], dtype=torch.int64, device=device(members))
    sizes = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, mine, members)
    counts = [int(size) for size in sizes]
    padded = torch.zeros(max(counts), dtype=torch.uint8, device=device(members))
    padded[: len(content)] = content
    return padded, counts


def from_main(value: object, members: dist.ProcessGroup | None = None) -> Any:
    """Return rank 0's `value` on all ranks; collective. It is of encoding.KINDS."""
    if not is_joined():
        return value
    content = encode(value if leads() else None)
    size = torch.tensor([len(content)], dtype=torch.int64, device=device(members))
    dist.broadcast(size, 0, members)
    moved = (
        content.to(device(members)) if leads() else torch.empty(int(size), dtype=torch.uint8, device=device(members))
    )
    dist.broadcast(moved, 0, members)
    return decode(moved)  # on rank 0 as well: a value that can't be sent is refused on all ranks alike


def file_from_main(file: IO[bytes], *, keeps: bool) -> None:
    """Write what rank 0's file holds into the files of those that keep it, in chunks of 64 MiB; collective.

    All have the whole when this returns: a file that other ranks read too is complete.
    """
    if not is_joined():
        return
    size = from_main(os.fstat(file.fileno()).st_size)
    chunk = torch.empty(min(size, CHUNK_BYTES), dtype=torch.uint8)
    for start in range(0, size, CHUNK_BYTES):
        part = chunk[: size - start]
        if leads():
            os.preadv(file.fileno(), [part.numpy().data], start)
        moved = part.to(device())
        dist.broadcast(moved, 0)
        if keeps and not leads():
            os.pwrite(file.fileno(), moved.cpu().numpy().data, start)
    barrier()


def barrier() -> None:
    """Wait for all ranks; collective."""
    if is_joined():
        sum_over_ranks([0.0])

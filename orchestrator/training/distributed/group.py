"""Joins and leaves the process group, and provides the few collectives that training needs.

All functions also work in a single process without a process group.
"""

import gc
import os
from collections.abc import Callable, Iterator, Sequence
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
PATIENCE = 1800.0  # seconds; torch's own default for collectives of gloo


@contextmanager
def joined(
    ranks: Ranks, choice: Choice | UserError, init_method: str = "env://", timeout: float = PATIENCE
) -> Iterator[Choice]:
    """Join the process group during the block, and yield the choice on which all ranks agree. `timeout` is the time
    limit of collectives, in seconds.

    If a rank has an error or another choice, UserError is raised on all ranks, because the ranks would otherwise wait
    for each other forever.
    """
    alone = not ranks.grouped or (ranks.world_size == 1 and isinstance(choice, UserError))
    if isinstance(choice, UserError) and alone:
        raise choice
    if isinstance(choice, Choice) and choice.device.type == "cuda":
        torch.cuda.set_device(choice.device)
    if isinstance(choice, UserError) or choice.backend:
        choice = _join(ranks, choice, init_method, timedelta(seconds=timeout))
    try:
        yield choice
    except (UserError, CheckpointError, DivergedError):
        # All ranks raise these errors together. After any other error the group is not destroyed, because that can hang
        # while other ranks wait for this rank's collectives.
        leave()
        raise
    if choice.backend:
        barrier()
    leave()


def _join(ranks: Ranks, choice: Choice | UserError, init_method: str, timeout: timedelta) -> Choice:
    if isinstance(choice, Choice) and choice.backend == "mpi":  # the ranks meet through MPI's own launcher
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
    """If there is a process group, set the timeout of its later collectives, in seconds."""
    if is_joined():
        # The first name exists from torch 2.15 on.
        change = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout
        change(timedelta(seconds=seconds))


def leave() -> None:
    """Leave the process group, if there is one. All ranks must call this together, after a `barrier`."""
    # DDP holds the group in a reference cycle. If the interpreter's exit freed it, gloo's threads would use a finalized
    # Python, and a successful run would end by SIGABRT (pytorch #179291).
    gc.collect()
    if is_joined():
        dist.destroy_process_group()


def rank() -> int:
    """Return the rank of this process. Before it joins a group, return the variable RANK, or 0 if RANK is not set."""
    return dist.get_rank() if is_joined() else _from_environ("RANK", 0)


def world_size() -> int:
    """Return the number of ranks. Before this process joins a group, return the variable WORLD_SIZE, or 1 if it is
    not set.
    """
    return dist.get_world_size() if is_joined() else _from_environ("WORLD_SIZE", 1)


def is_joined() -> bool:
    """Return whether this process is in a process group."""
    return dist.is_available() and dist.is_initialized()


def leads() -> bool:
    """Return whether this process is rank 0 of its group, or has no group. Only such a process writes files and
    prints.
    """
    return not is_joined() or dist.get_rank() == 0


def _from_environ(name: str, default: int) -> int:
    # A user's script may call `rank` before it creates its process group.
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else default


def beside() -> dist.ProcessGroup | None:
    """Create a gloo group of all ranks for background work. All ranks must call this. Return None without a process
    group.

    A background thread needs its own group. If two threads of a rank shared a group, a collective of one thread could
    be matched with a collective of the other thread on another rank.
    """
    if not is_joined():
        return None
    members = dist.new_group(backend="gloo", timeout=timedelta(seconds=PATIENCE))
    assert isinstance(members, dist.ProcessGroup)  # every rank is a member of this group
    return members


def device(members: dist.ProcessGroup | None = None) -> torch.device:
    """Return the device on which the tensors of a collective must be. If the group has only NCCL, that is the GPU."""
    return torch.device("cuda" if dist.get_backend(members) == "nccl" else "cpu")


def sum_over_ranks(values: Sequence[float]) -> list[float]:
    """Return the sums of `values` over all ranks, with the same bits on every rank. All ranks must call this."""
    if not is_joined():
        return list(values)
    tensor = torch.tensor(values, dtype=torch.float64, device=device())
    dist.all_reduce(tensor)
    return [float(value) for value in tensor.tolist()]


def everyones(value: object, members: dist.ProcessGroup | None = None) -> list[Any]:
    """Return, on every rank, a list with the `value` of each rank. All ranks must call this. The value's type must be
    in encoding.KINDS.
    """
    if not is_joined():
        return [value]
    mine, sizes = _padded(value, members)
    parts = [torch.empty_like(mine) for _ in sizes]
    dist.all_gather(parts, mine, members)
    return [decode(part[:size]) for part, size in zip(parts, sizes, strict=True)]


def gathered(value: object) -> list[Any] | None:
    """Return, on rank 0, a list with the `value` of each rank. Return None on other ranks. All ranks must call this.

    The type of the value must be in encoding.KINDS.
    """
    if not is_joined():
        return [value]
    mine, sizes = _padded(value)
    parts = [torch.empty_like(mine) for _ in sizes] if dist.get_rank() == 0 else None
    dist.gather(mine, parts)
    return None if parts is None else [decode(part[:size]) for part, size in zip(parts, sizes, strict=True)]


def _padded(value: object, members: dist.ProcessGroup | None = None) -> tuple[torch.Tensor, list[int]]:
    """Return this rank's value, encoded and padded to the length of the longest value, and a list of the lengths of all
    ranks' values. All ranks must call this.
    """
    content = encode(value)
    mine = torch.tensor([len(content)], dtype=torch.int64, device=device(members))
    sizes = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, mine, members)
    counts = [int(size) for size in sizes]
    padded = torch.zeros(max(counts), dtype=torch.uint8, device=device(members))
    padded[: len(content)] = content
    return padded, counts


def from_main(value: object, members: dist.ProcessGroup | None = None) -> Any:
    """Return rank 0's `value` on all ranks. All ranks must call this. The value's type must be in encoding.KINDS."""
    if not is_joined():
        return value
    content = encode(value if leads() else None)
    size = torch.tensor([len(content)], dtype=torch.int64, device=device(members))
    dist.broadcast(size, 0, members)
    moved = (
        content.to(device(members)) if leads() else torch.empty(int(size), dtype=torch.uint8, device=device(members))
    )
    dist.broadcast(moved, 0, members)
    return decode(moved)  # decoded on rank 0 too, so that all ranks refuse a value that can't be sent


def done_by_main(work: Callable[[], Any], error: type[Exception], members: dist.ProcessGroup | None = None) -> Any:
    """Call `work` on rank 0, and return its result on all ranks. All ranks must call this. If `work` raises UserError
    or CheckpointError, an `error` with the same text is raised on all ranks.
    """
    found, problem = None, ""
    if leads():
        try:
            found = work()
        except (UserError, CheckpointError) as cause:
            problem = str(cause)
    found, problem = from_main((found, problem), members)
    if problem:
        raise error(problem)
    return found


def file_from_main(file: IO[bytes], *, keeps: bool) -> None:
    """Copy the content of rank 0's file to the file of each other rank that passes `keeps=True`, in chunks of 64 MiB.
    All ranks must call this.

    All copies are complete when this returns, because ranks also read each other's files.
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
    """Wait until all ranks have called this."""
    if is_joined():
        sum_over_ranks([0.0])

"""The group of ranks: who am I, which backend, which device, and the few collectives that training needs.

Everything here also works in a single plain process, where there is no process group.
"""

import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from orchestrator.training.distributed.encoding import decode, encode
from orchestrator.training.errors import CheckpointError, DivergedError, UserError

CHUNK_BYTES = 64 << 20
BOTH = "cpu:gloo,cuda:nccl"
"""torch's word for two backends in one group: gloo for what lies in host memory, NCCL for what lies on GPUs."""
BACKENDS = ("auto", "gloo", "nccl", BOTH, "mpi")


@dataclass(frozen=True)
class Ranks:
    """This process among the others, as torchrun's environment tells it; `grouped` is False without RANK."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    grouped: bool = False


@dataclass(frozen=True)
class Choice:
    """The communication backend ("" in a single plain process), the device to compute on, and why."""

    backend: str
    device: torch.device
    reason: str


def read_ranks(environ: Mapping[str, str] = os.environ) -> Ranks:
    """Read RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE; UserError where they contradict each other."""

    def number(name: str, default: int) -> int:
        try:
            return int(environ.get(name) or default)
        except ValueError:
            raise UserError(f"{name} must be a whole number, not {environ[name]!r}.") from None

    world_size = number("WORLD_SIZE", 1)
    ranks = Ranks(
        rank=number("RANK", 0),
        local_rank=number("LOCAL_RANK", 0),
        world_size=world_size,
        local_world_size=number("LOCAL_WORLD_SIZE", 1),
        grouped="RANK" in environ,
    )
    if not 0 <= ranks.rank < world_size:
        raise UserError(f"RANK={ranks.rank} does not fit WORLD_SIZE={world_size}: ranks count from 0.")
    if world_size > 1 and not ranks.grouped:
        raise UserError(f"WORLD_SIZE={world_size} is set but RANK is not: start the ranks with orch or torchrun.")
    return ranks


def choose(wanted: str, ranks: Ranks) -> Choice:
    """Choose backend and device for ORCH_BACKEND=`wanted`; UserError where this machine or torch can't do it."""
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    enough = devices >= ranks.local_world_size
    gpu = torch.device("cuda", ranks.local_rank) if enough else torch.device("cpu")
    counted = f"this process sees {devices} GPU{'s' * (devices != 1)} for its node's {ranks.local_world_size} ranks"
    if wanted not in BACKENDS:
        raise UserError(f"ORCH_BACKEND must be one of {' | '.join(BACKENDS)}, not {wanted!r}.")
    if wanted == "mpi" and not dist.is_mpi_available():
        raise UserError(
            "This torch was built without MPI: choose ORCH_BACKEND=gloo or nccl, or install a torch that was built "
            "from source with MPI."
        )
    if wanted in ("nccl", BOTH) and not (enough and dist.is_nccl_available()):
        raise UserError(
            f"The {wanted} backend needs a GPU for each of the {ranks.local_world_size} ranks of a node, and this "
            f"process sees {devices}: choose ORCH_BACKEND=gloo to train on CPUs, or start fewer ranks a node."
        )
    if not ranks.grouped:
        return Choice("", gpu, "a single process needs none")
    if wanted != "auto":
        return Choice(wanted, torch.device("cpu") if wanted == "mpi" else gpu, "ORCH_BACKEND asks for it")
    if enough and dist.is_nccl_available():
        return Choice("nccl", gpu, f"auto takes nccl where each rank has a GPU, and {counted}")
    if enough:
        return Choice("gloo", gpu, "auto takes gloo where torch was built without NCCL")
    return Choice("gloo", gpu, f"auto takes nccl only where each rank has a GPU, and {counted}")


@contextmanager
def joined(ranks: Ranks, choice: Choice, init_method: str = "env://") -> Iterator[None]:
    """Be a member of the process group within the block; after an error the group is left as it is."""
    if choice.device.type == "cuda":
        torch.cuda.set_device(choice.device)
    if choice.backend:
        bound = choice.device if choice.backend in ("nccl", BOTH) else None
        if init_method.startswith("tcp://"):
            # Rank 0 serves this store itself; torch before 2.15 would take the launcher's to be there.
            os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
        dist.init_process_group(choice.backend, init_method, None, ranks.world_size, ranks.rank, device_id=bound)
    try:
        yield
    except (UserError, CheckpointError, DivergedError):
        # All ranks raise these together. After any other error the group is left alone: tearing it down while
        # peers still wait for this rank's collectives can hang.
        leave()
        raise
    if choice.backend:
        barrier()
    leave()


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


def device() -> torch.device:
    """Return where the tensors of a collective must live: NCCL alone moves only GPU memory."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


def sum_over_ranks(values: Sequence[float]) -> list[float]:
    """Return the sums of `values` over all ranks, the same bits on every rank; collective."""
    if not is_joined():
        return list(values)
    tensor = torch.tensor(values, dtype=torch.float64, device=device())
    dist.all_reduce(tensor)
    return [float(value) for value in tensor.tolist()]


def everyones(value: object) -> list[Any]:
    """Return each rank's `value`, by rank, on all ranks; collective. It is of encoding.KINDS."""
    if not is_joined():
        return [value]
    mine, sizes = _padded(value)
    parts = [torch.empty_like(mine) for _ in sizes]
    dist.all_gather(parts, mine)
    return [decode(part[:size]) for part, size in zip(parts, sizes, strict=True)]


def gathered(value: object) -> list[Any] | None:
    """Return each rank's `value`, by rank, on rank 0 and None elsewhere; collective. It is of encoding.KINDS."""
    if not is_joined():
        return [value]
    mine, sizes = _padded(value)
    parts = [torch.empty_like(mine) for _ in sizes] if dist.get_rank() == 0 else None
    dist.gather(mine, parts)
    return None if parts is None else [decode(part[:size]) for part, size in zip(parts, sizes, strict=True)]


def _padded(value: object) -> tuple[torch.Tensor, list[int]]:
    """Return this rank's value as bytes, as many as the longest has, and how many each rank's has; collective."""
    content = encode(value)
    mine = torch.tensor([len(content)], dtype=torch.int64, device=device())
    sizes = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, mine)
    counts = [int(size) for size in sizes]
    padded = torch.zeros(max(counts), dtype=torch.uint8, device=device())
    padded[: len(content)] = content
    return padded, counts


def from_main(value: object) -> Any:
    """Return rank 0's `value` on all ranks; collective. It is of encoding.KINDS."""
    if not is_joined():
        return value
    content = encode(value if leads() else None)
    size = torch.tensor([len(content)], dtype=torch.int64, device=device())
    dist.broadcast(size, 0)
    moved = content.to(device()) if leads() else torch.empty(int(size), dtype=torch.uint8, device=device())
    dist.broadcast(moved, 0)
    return decode(moved)  # on rank 0 as well: a value that can't be sent is refused on all ranks alike


def bytes_from_main(content: bytes | None) -> bytes | None:
    """Return rank 0's `content` on all ranks, moved in chunks of 64 MiB; collective."""
    if not is_joined():
        return content
    size = from_main(None if content is None else len(content))
    if size is None:
        return None
    buffer = torch.frombuffer(bytearray(content or size), dtype=torch.uint8)
    for start in range(0, size, CHUNK_BYTES):
        chunk = buffer[start : start + CHUNK_BYTES]
        moved = chunk.to(device())
        dist.broadcast(moved, 0)
        chunk.copy_(moved)
    return content if content is not None else buffer.numpy().tobytes()


def barrier() -> None:
    """Wait for all ranks; collective."""
    if is_joined():
        sum_over_ranks([0.0])

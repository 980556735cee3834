"""Starts ranks without a launcher, as processes on this machine. The calling notebook or script waits for them."""

import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from orchestrator.training.errors import UserError


def spawn(function: Callable[..., Any], nproc: int, *arguments: Any, start: str = "spawn") -> list[Any]:
    """Run `function(*arguments)` in `nproc` processes with torchrun's environment, and return a list with the result of
    each rank.

    Function, arguments and results must be picklable. With `start="fork"` the function may also be defined in a
    notebook, but this process must not have used CUDA. If a rank raises an exception, the other ranks are ended, and
    the exception's traceback is raised here as torch.multiprocessing.ProcessRaisedException.
    """
    if nproc < 1:
        raise UserError(f"{nproc} ranks can't be started: give 1 or more.")
    if start == "fork" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise UserError("Ranks can't be forked from a process that has used CUDA: restart it, or use start='spawn'.")
    # The store is bound here to a free port and stays bound, so that no other program can take the port.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory(prefix="orch-spawn-") as folder:
        start_processes(  # type: ignore[no-untyped-call]
            _rank, (function, arguments, nproc, store.port, folder), nprocs=nproc, start_method=start
        )
        results = [Path(folder, str(rank)).read_bytes() for rank in range(nproc)]
    return [pickle.loads(result) for result in results]  # noqa: S301 - written by these ranks, into a folder of our own


def _rank(
    rank: int, function: Callable[..., Any], arguments: tuple[Any, ...], nproc: int, port: int, folder: str
) -> None:
    """Run one rank in its process: set the environment, call the function, and store its result."""
    os.environ |= environment(rank, nproc, port)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // nproc))
    result = function(*arguments)
    Path(folder, str(rank)).write_bytes(pickle.dumps(result))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def environment(rank: int, nproc: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun would set for a rank of one node. The store is at `port` on this machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(nproc),
        "LOCAL_WORLD_SIZE": str(nproc),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(nproc),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }

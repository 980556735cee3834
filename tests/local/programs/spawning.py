"""Spawns its own processes, as PyTorch's tutorial multigpu.py does, and joins them in each way that tutorials show."""

import os
import socket
import sys
from contextlib import ExitStack

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        ports = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in ports:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in ports]


def all_reduce(rank: int, world_size: int, how: str, init_method: str | None = None) -> None:
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size)
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    dist.destroy_process_group()
    if rank == 0:
        print(f"{how}: {int(total)}", flush=True)


def main(rank: int, world_size: int, ports: list[int], file: str) -> None:
    if "MASTER_PORT" in os.environ:
        all_reduce(rank, world_size, "given")
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(ports[0])
    all_reduce(rank, world_size, "own port")
    all_reduce(rank, world_size, "tcp", f"tcp://localhost:{ports[1]}")
    all_reduce(rank, world_size, "file", f"file://{file}")


if __name__ == "__main__":
    world_size = int(sys.argv[1])
    mp.spawn(main, args=(world_size, free_ports(2), os.path.abspath("group")), nprocs=world_size)

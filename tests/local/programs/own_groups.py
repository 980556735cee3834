"""Joins the group of its ranks. Then rank 0 starts two processes, and these join two groups of their own at a port of
their own, one after the other.

The processes are started as libraries start them: one without PYTHONPATH, one in a new session.
"""

import os
import socket
import subprocess
import sys

import torch
import torch.distributed as dist


def all_reduce(name: str) -> None:
    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"{name}: {int(total)}", flush=True)
    dist.destroy_process_group()


def start(rank: int, port: int) -> subprocess.Popen:
    own = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    isolated = ["-I"] if rank == 0 else []
    words = [sys.executable, *isolated, os.path.abspath(__file__), "child"]
    return subprocess.Popen(words, env=os.environ | own, start_new_session=rank == 1)


if __name__ == "__main__":
    if sys.argv[1:] == ["child"]:
        all_reduce("first of its own")
        all_reduce("second of its own")
    else:
        all_reduce("given")
        if os.environ["RANK"] == "0":
            with socket.socket() as held:
                held.bind(("127.0.0.1", 0))
                port = held.getsockname()[1]
            children = [start(rank, port) for rank in range(2)]
            sys.exit(max(child.wait() for child in children))

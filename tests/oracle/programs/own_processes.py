"""Starts its ranks by multiprocessing, which meet at a file."""

import os
from multiprocessing import get_context

import torch.distributed as dist
from ddp import train


def main(rank: int, world_size: int, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size)
    train()
    dist.destroy_process_group()


if __name__ == "__main__":
    processes = [
        get_context("spawn").Process(target=main, args=(rank, 2, os.path.abspath("meeting"))) for rank in (0, 1)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    if os.path.exists("meeting"):
        os.remove("meeting")

"""Spawns its ranks at port 12355, as PyTorch's DDP tutorial does."""

import os

import torch.distributed as dist
import torch.multiprocessing as mp
from ddp import train


def main(rank: int, world_size: int) -> None:
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    train()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, args=(2,), nprocs=2)

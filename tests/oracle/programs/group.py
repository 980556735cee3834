"""One rank of a group that a parent has started: `group.py PREFIX`, with the usual variables in the environment."""

import sys

import torch.distributed as dist
from ddp import train

if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(sys.argv[1])
    dist.destroy_process_group()

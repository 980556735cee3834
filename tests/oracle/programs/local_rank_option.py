"""Reads its local rank as an option, as scripts for torch.distributed.launch do."""

import argparse
import os

import torch.distributed as dist
from ddp import train

parser = argparse.ArgumentParser()
parser.add_argument("--local-rank", "--local_rank", type=int, required=True)
assert parser.parse_args().local_rank == int(os.environ["RANK"])
dist.init_process_group("gloo")
train()
dist.destroy_process_group()

"""The DDP script as a module of a package."""

import torch.distributed as dist
from ddp import train

dist.init_process_group("gloo")
train("package_")
dist.destroy_process_group()

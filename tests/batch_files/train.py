"""A small training for the batch files of this folder: each rank writes its host, its numbers and its losses to a file.

It finds its rank in torchrun's variables or in Slurm's, as programs do.
"""

from __future__ import annotations

import json
import os
import socket
import sys

import torch
import torch.distributed as dist

rank = int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0)
world = int(os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_NTASKS") or 1)
steps = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 3
if world > 1:
    os.environ.setdefault("MASTER_PORT", "29511")
    dist.init_process_group("gloo", rank=rank, world_size=world)
torch.manual_seed(0)
weight = torch.zeros(4, requires_grad=True)
data = torch.randn(64, 4)[rank::world]
losses = []
for _ in range(steps):
    loss = ((data @ weight - data.sum(1)) ** 2).mean()
    (gradient,) = torch.autograd.grad(loss, weight)
    shared = torch.cat([gradient.detach(), loss.detach()[None]])
    if world > 1:
        dist.all_reduce(shared)
    with torch.no_grad():
        weight -= 0.1 * shared[:4] / world
    losses.append(round(float(shared[4]) / world, 6))
if world > 1:
    dist.destroy_process_group()
folder = os.environ["BATCH_FILE_RESULTS"]
found = {"rank": rank, "world": world, "host": socket.gethostname(), "losses": losses, "args": sys.argv[1:]}
with open(f"{folder}/{socket.gethostname()}.{os.getpid()}.json", "w") as file:
    json.dump(found, file)
print(f"rank {rank} of {world}: {losses}", flush=True)

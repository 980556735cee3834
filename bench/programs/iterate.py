"""Iterations of a matmul and a small all_reduce, with log lines and heartbeats, and how many a second there were."""

import sys
import time

import torch
import torch.distributed as dist
from stamp import stamp

from orchestrator.training import run

WARM_UP = 50
SIZE = 384

stamp("started")
total = int(sys.argv[1])
dist.init_process_group("gloo")
weights, gradient = torch.randn(SIZE, SIZE), torch.ones(10_000)
begun = 0.0
for step in range(1, total + WARM_UP + 1):
    loss = (weights @ weights).mean()
    dist.all_reduce(gradient)
    gradient /= dist.get_world_size()
    run.step(step, total + WARM_UP, loss)
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
    if step == WARM_UP:
        dist.barrier()
        begun = time.monotonic()
dist.barrier()
stamp("rate", rate=total / (time.monotonic() - begun))
dist.destroy_process_group()

"""Iterations of a matmul and a small all_reduce, with log lines and heartbeats."""

import torch
import torch.distributed as dist
from flood import Flood
from stamp import stamp
from turns import Turns

from orchestrator.training import run

SIZE = 384

stamp("started")
dist.init_process_group("gloo")
weights, gradient, turns = torch.randn(SIZE, SIZE), torch.ones(10_000), Turns()
flood = Flood()
total = turns.turns * turns.steps + 1
for step in range(1, total + 1):
    turns()
    loss = (weights @ weights).mean()
    dist.all_reduce(gradient)
    gradient /= dist.get_world_size()
    run.step(step, total, loss)
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
    flood()
dist.barrier()
dist.destroy_process_group()

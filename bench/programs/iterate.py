"""Turns of iterations of a matmul and a small all_reduce, with log lines and heartbeats, and the rate of each turn.

A turn begins when its file appears, so that two launches can take turns on a machine that others use as well.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from stamp import stamp

from orchestrator.training import run

SIZE = 384
SECONDS = 120.0

stamp("started")
turns, iterations = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo")
weights, gradient = torch.randn(SIZE, SIZE), torch.ones(10_000)
step, end = 0, time.monotonic() + SECONDS
for turn in range(turns):
    while not (Path(os.environ["BENCH_OUT"]) / f"turn_{turn}").exists():
        if time.monotonic() > end:
            raise SystemExit("nobody wants a turn any more")
        time.sleep(0.01)
    dist.barrier()
    begun = time.monotonic()
    for _ in range(iterations):
        loss = (weights @ weights).mean()
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
        step += 1
        run.step(step, turns * iterations, loss)
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    stamp("turn", rate=iterations / (time.monotonic() - begun))
dist.destroy_process_group()

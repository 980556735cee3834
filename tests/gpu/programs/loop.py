"""A loop of DDP steps over a model of $WIDTH; writes down its steps a second and the peak of the device's memory."""

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

on_gpu, width, steps = os.environ["DEVICE"] == "cuda", int(os.environ["WIDTH"]), int(os.environ["STEPS"])
if on_gpu:
    torch.cuda.set_device(0)
dist.init_process_group("nccl" if on_gpu else "gloo", device_id=torch.device("cuda", 0) if on_gpu else None)
model = nn.Sequential(*(nn.Linear(width, width) for _ in range(8))).to(os.environ["DEVICE"])
network = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
inputs = torch.randn(64, width, device=os.environ["DEVICE"])
for step in range(steps + 10):
    if step == 10:
        torch.cuda.synchronize() if on_gpu else None
        begun = time.perf_counter()
    optimizer.zero_grad()
    network(inputs).square().mean().backward()
    optimizer.step()
torch.cuda.synchronize() if on_gpu else None
rate = steps / (time.perf_counter() - begun)
peak = torch.cuda.max_memory_allocated() if on_gpu else 0
Path(os.environ["STAMP"]).write_text(json.dumps({"rate": rate, "peak": peak}))
dist.destroy_process_group()

"""An ordinary DDP script; the lines marked with + are what orch's resume, heartbeats and stop take."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from orchestrator.training import run  # +

total = int(sys.argv[1])
dist.init_process_group()
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
first = run.resume(model=model, optimizer=optimizer)  # +

for step in range(first, total):  # before: range(total)
    inputs = torch.randn(64, 8)
    loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.after_step(step + 1, total, loss, save_every=500, model=model, optimizer=optimizer)  # +

if dist.get_rank() == 0:
    print(f"began at {first}, loss {loss.item():.4f}")
dist.barrier()
dist.destroy_process_group()

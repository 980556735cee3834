"""Ranks that share a device: collectives, objects, point to point, and five steps of DDP on a batch that they share."""

import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
on_gpu = os.environ["DEVICE"] == "cuda"
if on_gpu and not os.environ.get("PLAIN"):
    os.environ["NCCL_HOSTID"] = f"apart-{rank}"
device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)

total = torch.full((1024,), rank + 1.0, device=device)
dist.all_reduce(total)
assert total[0].item() == world * (world + 1) / 2
told = torch.full((8,), float(rank), device=device)
dist.broadcast(told, src=world - 1)
assert told[0].item() == world - 1
found: list[object] = [None] * world
dist.all_gather_object(found, {"rank": rank})
assert found == [{"rank": each} for each in range(world)]
if world == 2:
    sent, got = torch.full((4,), float(rank), device=device), torch.empty(4, device=device)
    other = 1 - rank
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, got, other)]):
        work.wait()
    assert got[0].item() == other

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
network = DistributedDataParallel(model, device_ids=[0] if on_gpu else None)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(5, 32, 8, generator=torch.Generator().manual_seed(1)).to(device)
for batch in inputs:
    mine = batch[rank * 32 // world : (rank + 1) * 32 // world]
    optimizer.zero_grad()
    (network(mine) - mine.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
print(
    json.dumps({"weights": [round(float(value), 9) for value in model[0].weight.detach().flatten().cpu()]}), flush=True
)
dist.barrier()
dist.destroy_process_group()

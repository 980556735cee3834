"""Each rank on a GPU of its own: an all_reduce of 256 MiB, whose result and bus bandwidth are told."""

import json
import os
import time

import torch
import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
numbers = torch.ones(1 << 26, device=device)
for turn in range(25):
    if turn == 5:
        torch.cuda.synchronize()
        begun = time.perf_counter()
    numbers.fill_(rank + 1.0)
    dist.all_reduce(numbers)
torch.cuda.synchronize()
seconds = (time.perf_counter() - begun) / 20
assert numbers.unique().tolist() == [world * (world + 1) / 2]
print(json.dumps({"bus GB/s": round(2 * (world - 1) / world * numbers.nbytes / seconds / 1e9, 1)}), flush=True)
dist.destroy_process_group()

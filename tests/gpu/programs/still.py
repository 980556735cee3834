"""Two ranks that share a device, joined by gloo on the CPU; from step 10 on rank 1 goes no further, as $HOW says."""

import os
import time

import torch
import torch.distributed as dist

from orchestrator.training import run

rank, how = int(os.environ["RANK"]), os.environ["HOW"]
on_gpu = os.environ["DEVICE"] == "cuda"
if on_gpu:
    os.environ |= {
        "NCCL_HOSTID": f"apart-{rank}",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "NCCL_MAX_CTAS": "2",
    }
    torch.cuda.set_device(0)
dist.init_process_group("nccl" if on_gpu else "gloo", device_id=torch.device("cuda", 0) if on_gpu else None)
number = torch.ones(1, device="cuda" if on_gpu else "cpu")
for step in range(1, 1000):
    if rank == 1 and step == 10:
        if how == "sleep":
            time.sleep(600)
        if how == "kernel":
            torch.cuda._sleep(10**13)
            torch.cuda.synchronize()
        if how == "missing":
            while True:
                time.sleep(0.1)  # it goes on with something else, and enters no collective any more
    dist.all_reduce(number)
    number.fill_(1.0).item()
    run.step(step, 1000)
    time.sleep(0.02)

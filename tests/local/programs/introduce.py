"""Says who each rank is, what it finds around it, and what the ranks reckon together; a script, and a function."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE")


def introduce() -> dict:
    """Join the group, take three steps together, and tell."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    for _ in range(3):  # by hand: DDP and torch.optim take longer to import than all of this
        model(torch.full((2, 4), float(rank + 1))).square().mean().backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
            weight.data.sub_(weight.grad, alpha=0.05)
            weight.grad.zero_()
    return {
        "rank": [rank, ranks],
        "environment": {name: os.environ.get(name) for name in NAMES},
        "met": bool(os.environ["MASTER_ADDR"]) and int(os.environ["MASTER_PORT"]) > 0,
        "weights": model.weight.tolist(),
    }


if __name__ == "__main__":
    told = introduce()
    Path(sys.argv[1], f"{told['rank'][0]}.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()

"""An ordinary DDP script, and the training that the other programs of this folder share."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(prefix: str = "") -> None:
    """Train in the process group that is there; every rank leaves a file, and rank 0 the weights."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(5):
        inputs = torch.randn(8, 4)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"rank {rank} of {world} loss {loss.item():.6f}\n", end="", flush=True)
    with open(f"{prefix}rank_{rank}.txt", "w") as file:
        file.write(f"{loss.item():.6f}\n")
    if rank == 0:
        torch.save(model.module.state_dict(), f"{prefix}model.pt")
    dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()

"""DistributedDataParallel and a DataLoader, as torchrun's tutorials have it: this script knows nothing of orch.

orch hands it RANK and its kin, as torchrun would, and $ORCH_RESUME_FROM, one line of it.
"""

import argparse
import os
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

OUT = Path("outputs")


def curve(count: int) -> TensorDataset:
    """A sine, with some noise."""
    generator = torch.Generator().manual_seed(1)
    x = 6 * torch.rand(count, 1, generator=generator) - 3
    return TensorDataset(x, torch.sin(2 * x) + 0.1 * torch.randn(count, 1, generator=generator))


def save(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Save as step-100.pt, which has its name when it is whole; the one before the last goes."""
    OUT.mkdir(exist_ok=True)
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, OUT / "new.tmp")
    os.replace(OUT / "new.tmp", OUT / f"step-{step}.pt")
    for old in in_order()[:-2]:
        old.unlink()


def in_order() -> list[Path]:
    return sorted(OUT.glob("step-*.pt"), key=lambda path: int(path.stem.removeprefix("step-")))


def load() -> dict[str, Any] | None:
    """What rank 0 finds, on all ranks: their machines need not share a folder."""
    found = [None]
    if dist.get_rank() == 0:
        path = os.environ.get("ORCH_RESUME_FROM") or next(reversed(in_order()), None)
        found = [torch.load(path, weights_only=True) if path else None]
    dist.broadcast_object_list(found)
    return found[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    epochs = parser.parse_args().epochs
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = curve(1920)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=96 // dist.get_world_size(), sampler=sampler)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    step = 0
    if saved := load():
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
        print(f"rank {dist.get_rank()} goes on at step {step}", flush=True)
    parallel = DistributedDataParallel(model)
    for epoch in range(step // len(loader), epochs):
        sampler.set_epoch(epoch)
        for x, y in islice(loader, step % len(loader), None):
            loss = F.mse_loss(parallel(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if dist.get_rank() == 0 and step % 25 == 0:
                save(step, model, optimizer)
                print(f"step {step}  loss {loss.item():.4f}", flush=True)
    if dist.get_rank() == 0:
        OUT.mkdir(exist_ok=True)
        torch.save(model.state_dict(), OUT / "final.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A loop of one's own with Hugging Face Accelerate: nothing is downloaded.

orch needs three lines of it, those with `run`: they resume, send heartbeats, save, and stop at a step.
"""

import argparse
import os
from itertools import islice
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

from orchestrator.training import run

OUT = Path(os.environ.get("ORCH_OUTPUT_DIR", "outputs"))


def corners(count: int) -> TensorDataset:
    """Points of a cube; whether an odd number of their coordinates is positive."""
    x = 2 * torch.rand(count, 3, generator=torch.Generator().manual_seed(1)) - 1
    return TensorDataset(x, (x > 0).sum(dim=1) % 2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    epochs = parser.parse_args().epochs
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),  # without it, it ignores the other ranks on CPUs
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),  # the same order again after a resume
    )
    set_seed(0)
    model = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 2))
    loader = DataLoader(corners(1920), batch_size=96 // accelerator.num_processes, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-2), loader)
    plain = accelerator.unwrap_model(model)
    step, total = run.resume(model=plain, optimizer=optimizer), epochs * len(loader)
    for epoch in range(step // len(loader), epochs):
        loader.set_epoch(epoch)
        for x, y in islice(loader, step % len(loader), None):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step % 10 == 0:
                run.metric(step, loss=loss.item())
            run.after_step(step, total, loss, save_every=25, model=plain, optimizer=optimizer)
    run.result(loss=loss.item())
    if accelerator.is_main_process:
        OUT.mkdir(exist_ok=True)
        torch.save(plain.state_dict(), OUT / "final.pt")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()

"""Lightning's Trainer and a small network that tells three spirals apart: nothing is downloaded.

orch needs two lines of it: OrchCallback among the callbacks, and what `fit` resumes from.
"""

import argparse
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from orchestrator.training.lightning import OrchCallback

OUT = Path(os.environ.get("ORCH_OUTPUT_DIR", "outputs"))
LOCAL_RANKS, NODES = (int(os.environ.get(name, "1")) for name in ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"))


def spirals(count: int, seed: int) -> TensorDataset:
    """Points on three arms, with some noise, and the arm of each."""
    generator = torch.Generator().manual_seed(seed)
    arms = torch.randint(3, (count,), generator=generator)
    radius = torch.rand(count, generator=generator)
    angle = 4 * radius + 2.1 * arms + 0.1 * torch.randn(count, generator=generator)
    return TensorDataset(torch.stack((radius * angle.cos(), radius * angle.sin()), dim=1), arms)


class Batches(DataLoader):
    """A DataLoader whose place in the epoch goes into Lightning's checkpoints, so that none is seen twice."""

    taken = first = 0

    def __iter__(self) -> Iterator[Any]:
        self.taken, self.first = self.first, 0
        return self._counted(islice(super().__iter__(), self.taken, None))

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self.taken += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.first = state["taken"] % len(self)


class Spirals(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))

    def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
        points, arms = batch
        loss = F.cross_entropy(self.layers(points), arms)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], _index: int) -> None:
        points, arms = batch
        self.log("accuracy", (self.layers(points).argmax(dim=1) == arms).float().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def newest() -> Path | None:
    """The newest checkpoint; Lightning gives a file its name when it is whole."""
    return max(OUT.glob("*.ckpt"), key=lambda path: path.stat().st_mtime, default=None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    epochs = parser.parse_args().epochs
    seed_everything(0)
    rank, ranks = int(os.environ.get("RANK", "0")), LOCAL_RANKS * NODES
    train, test = spirals(2400, seed=1), spirals(300, seed=2)
    trainer = Trainer(
        max_epochs=epochs,
        devices=LOCAL_RANKS,
        num_nodes=NODES,
        strategy="ddp" if ranks > 1 else "auto",
        use_distributed_sampler=False,
        default_root_dir=OUT,
        callbacks=[
            OrchCallback(),
            ModelCheckpoint(OUT, every_n_train_steps=25, save_top_k=2, monitor="step", mode="max"),
        ],
        log_every_n_steps=10,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Spirals()
    trainer.fit(
        model,
        Batches(train, batch_size=48 // ranks, sampler=DistributedSampler(train, ranks, rank)),
        DataLoader(test, batch_size=100, sampler=DistributedSampler(test, ranks, rank, shuffle=False)),
        ckpt_path=os.environ.get("ORCH_RESUME_FROM") or newest(),
    )
    if rank == 0:
        torch.save(model.state_dict(), OUT / "final.pt")
    if ranks > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

"""Lightning's Trainer, which starts the second rank itself unless a launcher has."""

import warnings

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

warnings.filterwarnings("ignore")


class Line(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(4, 1)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.line(batch), batch.sum(1, keepdim=True))
        self.log("loss", loss)
        self.last = loss.item()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


seed_everything(0, verbose=False)
kept = ModelCheckpoint("light", every_n_train_steps=2, save_top_k=-1, save_weights_only=True)
trainer = Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_steps=4, logger=CSVLogger("logs"), log_every_n_steps=1,
    enable_progress_bar=False, enable_model_summary=False, callbacks=[kept],
)  # fmt: skip
model = Line()
trainer.fit(model, torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8))
print(f"rank {trainer.global_rank} of {trainer.world_size} loss {model.last:.6f}\n", end="", flush=True)
if trainer.is_global_zero:
    torch.save(model.state_dict(), "light/final.pt")

"""Hugging Face's Trainer on a line."""

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments


class Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": torch.nn.functional.mse_loss(self.line(x), labels)}


class Say(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **rest):
        if "loss" in logs:
            print(f"rank {args.process_index} of {args.world_size} loss {logs['loss']}\n", end="", flush=True)


torch.manual_seed(0)
inputs = torch.randn(32, 4)
asked = TrainingArguments(
    "hf", use_cpu=True, max_steps=6, save_steps=3, logging_steps=6, report_to="none", disable_tqdm=True,
    per_device_train_batch_size=4, learning_rate=0.1, log_on_each_node=False,
)  # fmt: skip
rows = [{"x": row, "labels": row.sum(0, keepdim=True)} for row in inputs]
trainer = Trainer(Line(), asked, train_dataset=rows, callbacks=[Say()])
trainer.train()
trainer.save_model("hf/final")
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()

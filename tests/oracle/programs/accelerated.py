"""Accelerate's loop."""

import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
torch.manual_seed(accelerator.process_index)
for _ in range(5):
    inputs = torch.randn(8, 4)
    loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
rank, world = accelerator.process_index, accelerator.num_processes
print(f"rank {rank} of {world} loss {loss.item():.6f}\n", end="", flush=True)
accelerator.wait_for_everyone()
accelerator.save_model(model, "accelerated")
accelerator.end_training()

"""A small model under DistributedDataParallel that trains slowly; `orch drill` interrupts it.

It saves every ten steps, goes on from the newest checkpoint, and keeps a ledger: a number that tells, in the end,
whether every step was done, once and in order.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from orchestrator.training import run

SAVE_EVERY = 10


class Model(nn.Module):
    """Eight numbers to one; the ledger travels in its checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.register_buffer("ledger", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layer(inputs)
        return outputs


total, pause = int(sys.argv[1]), float(sys.argv[2])
dist.init_process_group("gloo")  # on the CPU, whatever else there is: it is not the devices that are tested
torch.manual_seed(0)
model = Model()
parallel = DistributedDataParallel(model)
optimizer = torch.optim.Adam(parallel.parameters(), lr=1e-2)
for step in range(run.resume(model=model, optimizer=optimizer) + 1, total + 1):
    torch.manual_seed(step)
    inputs = torch.randn(8, 8)
    loss = nn.functional.mse_loss(parallel(inputs), inputs.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.ledger.copy_((model.ledger * 31 + step) % 1_000_003)
    time.sleep(pause)
    run.after_step(step, total, loss, save_every=SAVE_EVERY, model=model, optimizer=optimizer)
run.result(steps=total, ledger=int(model.ledger))
dist.barrier()
dist.destroy_process_group()

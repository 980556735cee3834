"""DeepSpeed's engine on CPUs."""

import argparse

import deepspeed
import torch
from torch import nn

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
deepspeed.ops.__compatible_ops__.clear()  # the first of them would be compiled for a minute
torch.manual_seed(0)
settings = {"train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
deepspeed.init_distributed("gloo")
model = nn.Linear(4, 1)
engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters(), config=settings)
rank, world = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
torch.manual_seed(rank)
for _ in range(5):
    inputs = torch.randn(8, 4)
    loss = nn.functional.mse_loss(engine(inputs), inputs.sum(1, keepdim=True))
    engine.backward(loss)
    engine.step()
print(f"rank {rank} of {world} loss {loss.item():.6f} local {args.local_rank}\n", end="", flush=True)
if rank == 0:
    torch.save(engine.module.state_dict(), "deep.pt")
deepspeed.comm.barrier()

"""Resumes from a checkpoint of 8 MB; tells which file its tensors were mapped from, and what is mapped at the end."""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from orchestrator.protocol.checkpoints.checkpoint_dir import Manifest
from orchestrator.training import run
from orchestrator.training.checkpoint import format as checkpoints
from orchestrator.training.checkpoint import random_state
from orchestrator.training.distributed import group


def mapped() -> list[str]:
    """Which files in memory this process has mapped: their inodes."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split()[4] for line in lines if "memfd:checkpoint" in line]


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(1000, 1000)
    return model, torch.optim.Adam(model.parameters())


dist.init_process_group("gloo")
model, optimizer = made()
if group.leads():
    model(torch.ones(2, 1000)).sum().backward()
    optimizer.step()
    objects = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    states = [random_state.random_state()] * group.world_size()
    checkpoints.save(Path("checkpoints"), {"step": 7, "objects": objects, "random": states}, Manifest(step=7))
group.barrier()

state = run.load_latest()
assert state is not None
while_loaded = mapped()
moments = state["objects"]["optimizer"]["state"][0]["exp_avg"]
moments.add_(group.rank())  # it is this rank's own
del state, moments

model, optimizer = made()
assert run.resume(model=model, optimizer=optimizer) == 7
sums = [float(optimizer.state[model.weight]["exp_avg"].sum()), float(model.weight.detach().sum())]
told = {"while_loaded": while_loaded, "after": mapped(), "sums": sums}
Path(f"told.{os.environ['RANK']}.json").write_text(json.dumps(told))
group.barrier()
group.leave()

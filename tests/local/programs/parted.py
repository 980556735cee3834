"""fsdp of a model of 128 MiB: what each rank has of it, and how much memory it took; also where ranks differ."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

from orchestrator.training.distributed import group
from orchestrator.training.distributed.ranks import read_ranks
from orchestrator.training.errors import UserError
from orchestrator.training.options import parse
from orchestrator.training.strategies.base import Setup
from orchestrator.training.strategies.fsdp import Fsdp

BLOCKS = 16
options = parse(["--strategy", "fsdp", "--task", "mnist"])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drawn = nn.Linear(1024, 2048), nn.Parameter(torch.empty(8, dtype=torch.float64))
        nn.init.trunc_normal_(self.drawn)
        self.register_buffer("mask", torch.rand(8) < 0.5, persistent=False)
        self.scale = torch.randn(())

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.first(values)


def model(_options: object) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(*(Block() for _ in range(BLOCKS)))


def another_model(_options: object) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3 + group.rank()))


def kilobytes(name: str) -> int:
    [line] = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith(name)]
    return int(line.split()[1])


def made(of: Any) -> Fsdp:
    task = SimpleNamespace(model=of, name="blocks", plan=None, optimizer=lambda own, _: torch.optim.SGD(own, 0.1))
    setup = Setup(options, cast(Any, task), read_ranks(), torch.device("cpu"), grouped=True)
    return Fsdp(setup, Fsdp.make(setup))


dist.init_process_group("gloo")
made(lambda _: nn.Sequential(nn.Linear(2, 2)))  # what is imported and kept the first time
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = kilobytes("VmRSS")
strategy = made(model)
peak = kilobytes("VmHWM") - before
state = strategy.full_state()
if state is not None:
    drawn = model(None)
    assert all(torch.equal(value, state["model"][name]) for name, value in drawn.state_dict().items())
tensors = [[block.mask.tolist(), float(block.scale)] for block in strategy.model]
refused = ""
try:
    made(another_model)
except UserError as error:
    refused = str(error)
told = {"peak_mib": peak / 1024, "tensors": tensors, "refused": refused}
Path(f"told.{os.environ['RANK']}.json").write_text(json.dumps(told))
group.barrier()
group.leave()

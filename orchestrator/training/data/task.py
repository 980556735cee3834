"""Loads tasks. A task is a Python file that defines what to train. Only `data` and `model` are required.

def data(options) -> Data                     training and test tensors, the target last; or a Dataset of each
def model(options) -> nn.Module               called with all tensors of a batch but the last
def loss(outputs, targets) -> Tensor          the MEAN over the batch; default cross entropy
def optimizer(parameters, options)            default AdamW at options.lr
def metrics(outputs, targets) -> dict         SUMS over the batch, divided by the count at the end; default none
def plan(options) -> dict                     layers by name, and how --tensor-ranks splits them; default none
cudnn_benchmark = True                        let cuDNN compare its algorithms for convolutions; default False
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.training.data.samples import Data, count
from orchestrator.training.distributed import group
from orchestrator.training.errors import UserError
from orchestrator.training.options import Options


def adamw(parameters: Iterable[nn.Parameter], options: Options) -> torch.optim.Optimizer:
    """Return the default optimizer of tasks."""
    return torch.optim.AdamW(parameters, lr=options.lr, fused=options.fused)


def no_metrics(_outputs: Tensor, _targets: Tensor) -> dict[str, Tensor]:
    """Return no metrics, so that only the loss is reported. This is the default of tasks."""
    return {}


@dataclass(frozen=True)
class Task:
    """The functions of a task file. A pickle contains only the file's path, and unpickling runs the file again."""

    name: str
    data: Callable[[Options], Data]
    model: Callable[[Options], nn.Module]
    loss: Callable[[Any, Tensor], Tensor] = functional.cross_entropy
    optimizer: Callable[[Iterable[nn.Parameter], Options], torch.optim.Optimizer] = adamw
    metrics: Callable[[Any, Tensor], Mapping[str, Tensor]] = no_metrics
    plan: Callable[[Options], Mapping[str, Any]] | None = None
    cudnn_benchmark: bool = False
    path: Path | None = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        return (_load_in, (Path.cwd(), self.path)) if self.path else super().__reduce_ex__(protocol)


def load_task(path: Path) -> Task:
    """Run a task file and return its functions. Raises UserError if the file or a required function is missing."""
    if not path.is_file():
        raise UserError(f"The task file {path} does not exist (looked from {Path.cwd()}).")
    spec = importlib.util.spec_from_file_location(f"orch_task_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"The task file {path} is no Python file: its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # The task can import files beside it, as a script can.
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    for name in ("data", "model"):
        if not callable(getattr(module, name, None)):
            raise UserError(f"The task file {path} must define {name}(options).")
    names = ("data", "model", "loss", "optimizer", "metrics", "plan", "cudnn_benchmark")
    return Task(
        name=path.stem, path=path.resolve(), **{name: getattr(module, name) for name in names if hasattr(module, name)}
    )


def _load_in(folder: Path, path: Path) -> Task:
    """Load a task in the working folder in which it was first loaded, because its Dataset may use relative paths."""
    os.chdir(folder)
    return load_task(path)


def load_data(task: Task, options: Options, warn: Callable[[str], None]) -> Data:
    """Return the task's data. All ranks must call this. `warn` is called with the reason if substitute data is used.

    Raises UserError on all ranks if one of them has no data, or if two ranks have different data.
    """
    data, problem, what = None, "", None
    try:
        data = task.data(options)
        if data is not None:
            what = data.name, count(data.train), count(data.test)
            _check_workers(data, options)
    except UserError as error:
        problem = str(error)
    answers = group.everyones((problem, what))
    if problem or data is None:
        raise UserError(problem or "The task's data() returned nothing.")
    for rank, (other_problem, other) in enumerate(answers):
        if other_problem:
            raise UserError(f"Rank {rank} has no data: {other_problem}")
        if other != what:
            raise UserError(f"Rank {rank} would train on {other}, but rank {group.rank()} on {what}.")
    if data.stand_in:
        why = data.note or "the requested data is missing"
        warn(f"training on {data.name}, {count(data.train):,} {data.unit}; {why}")
    return data


def _check_workers(data: Data, options: Options) -> None:
    if options.workers and isinstance(data.train, tuple) and isinstance(data.test, tuple):
        raise UserError(
            f"--workers {options.workers} is for a task whose data() returns a torch.utils.data.Dataset, and the data "
            "of this task is in memory: leave the option out."
        )

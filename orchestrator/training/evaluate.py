"""Evaluation without padding: each test sample is counted once, whatever the number of ranks."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from orchestrator.training import group
from orchestrator.training.precision import forward
from orchestrator.training.task import Task


@dataclass(frozen=True)
class Evaluation:
    """The means over all test samples, "loss" always among them, and the step they belong to."""

    step: int
    values: dict[str, float]


def evaluate(
    model: nn.Module,
    task: Task,
    test: tuple[Tensor, ...],
    batch: int,
    stop: Callable[[], bool],
    precision: str = "fp32",
) -> dict[str, float] | None:
    """Return the means of loss and metrics over all test samples, or None where `stop` said so; collective.

    Rank r takes the samples r, r + world_size, ...; `model` is the bare module, since DDP would synchronise and
    ranks may have a sample more or less.
    """
    count, ranks = len(test[-1]), group.world_size()
    indices = torch.arange(group.rank(), count, ranks)
    sums: dict[str, float] = {}
    model.eval()
    with torch.no_grad():
        # As many rounds on each rank, so that all ask `stop` equally often.
        for start in range(0, -(-count // ranks), batch):
            if stop():
                return None
            chosen = indices[start : start + batch]
            if len(chosen):
                *inputs, targets = (tensor[chosen.to(tensor.device)] for tensor in test)
                outputs = forward(model, inputs, precision)
                _add(sums, "samples", len(chosen))
                _add(sums, "loss", float(task.loss(outputs, targets)) * len(chosen))
                for name, value in task.metrics(outputs, targets).items():
                    _add(sums, name, float(value))
    # A rank without any sample knows no metric's name.
    names = sorted(set().union(*group.everyones(sorted(sums))))
    totals = dict(zip(names, group.sum_over_ranks([sums.get(name, 0.0) for name in names]), strict=True))
    counted = totals.pop("samples")
    if counted != count:
        raise RuntimeError(f"the evaluation counted {counted:g} samples instead of {count}")
    return {name: value / counted for name, value in totals.items()}


def _add(sums: dict[str, float], name: str, value: float) -> None:
    sums[name] = sums.get(name, 0.0) + value

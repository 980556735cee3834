"""Evaluation without padding: each test sample is counted once, whatever the number of ranks."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from orchestrator.training import group
from orchestrator.training.strategies.base import Strategy, pick


@dataclass(frozen=True)
class Evaluation:
    """The means over all test samples, "loss" always among them, and the step they belong to."""

    step: int
    values: dict[str, float]


def evaluate(strategy: Strategy, test: tuple[Tensor, ...], stop: Callable[[], bool]) -> dict[str, float] | None:
    """Return the means of loss and metrics over all test samples, or None where `stop` said so; collective.

    Of the ranks that share data, rank r takes the samples r, r + ranks, ...
    """
    count, ranks, task = len(test[-1]), strategy.data_ranks, strategy.setup.task
    indices = torch.arange(strategy.data_rank, count, ranks)
    batch = max(1, strategy.setup.options.global_batch // ranks)
    sums: dict[str, float] = {}
    strategy.model.eval()
    with torch.no_grad():
        # As many rounds on each rank, so that all ask `stop` equally often and predict together.
        for start in range(0, -(-count // ranks), batch):
            if stop():
                return None
            chosen = indices[start : start + batch]
            *inputs, targets = pick(test, chosen)
            outputs = strategy.predict(inputs)
            if len(chosen) and outputs is not None:
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

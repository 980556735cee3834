"""Evaluation without padding: each test sample counts once with any number of ranks."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from orchestrator.training.data.loading import Source
from orchestrator.training.data.sampler import Share, pick
from orchestrator.training.distributed import group
from orchestrator.training.strategies.base import Strategy


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation: the step, and a dict from the name of each metric (including "loss") to its mean
    over all test samples.
    """

    step: int
    values: dict[str, float]


def evaluate(strategy: Strategy, test: Source, count: int, stop: Callable[[], bool]) -> dict[str, float] | None:
    """Return the means of loss and metrics over all `count` test samples. All ranks must call this. Return None if
    `stop` returned True meanwhile.

    If each rank takes a part of the data, rank r takes the samples r, r + ranks, r + 2 * ranks, ...
    """
    ranks, task = strategy.data_ranks, strategy.setup.task
    indices = torch.arange(strategy.data_rank, count, ranks, device=test.looked_up_on)
    batch = max(1, strategy.setup.options.global_batch // ranks)
    # Every rank has the same number of shares, because `stop` and `predict` are collective.
    shares = (Share(indices[start : start + batch], count) for start in range(0, -(-count // ranks), batch))
    sums: dict[str, float | Tensor] = {}  # kept on the device until the end, because reading a sum waits for the device
    strategy.model.eval()
    with torch.no_grad():
        for tensors, share in test.batches(shares):
            if stop():
                return None
            *inputs, targets = pick(tensors, share.indices)
            outputs, taken = strategy.predict(inputs), len(share.indices)
            if taken and outputs is not None:
                _add(sums, "samples", taken)
                _add(sums, "loss", task.loss(outputs, targets), taken)
                for name, value in task.metrics(outputs, targets).items():
                    _add(sums, name, value)
    # A rank without samples does not know the metrics' names.
    names = sorted(set().union(*group.everyones(sorted(sums))))
    mine = [float(sums.get(name, 0.0)) for name in names]
    totals = dict(zip(names, group.sum_over_ranks(mine), strict=True))
    counted = totals.pop("samples")
    if counted != count:
        raise RuntimeError(f"the evaluation counted {counted:g} samples instead of {count}")
    return {name: value / counted for name, value in totals.items()}


def _add(sums: dict[str, float | Tensor], name: str, value: float | Tensor, times: int = 1) -> None:
    number = value.detach().double() if isinstance(value, Tensor) else value
    sums[name] = sums.get(name, 0.0) + number * times

"""The strategy dp-balanced, which is dp with a loss on each device, so that the first GPU needs no more memory than the
other GPUs.

`nn.DataParallel` gathers all outputs on the first GPU. If a model has large outputs, as segmentation and language
models do, this GPU runs out of memory first. With dp-balanced, outputs stay on their devices, and targets are scattered
to the same devices. Each device computes its own loss, and only the losses are moved.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import parallel_apply, replicate

from orchestrator.training.precision import forward
from orchestrator.training.strategies.dp import Dp, all_devices


class DpBalanced(Dp):
    """Splits each batch over the devices, and computes outputs and loss of each part on its device."""

    def wrap(self, model: nn.Module) -> nn.Module:
        return Parallel(model, all_devices(self.setup))

    def loss(self, outputs: Sequence[Any], targets: Tensor) -> Tensor:
        return parallel_loss(self.setup.task.loss, outputs, targets)

    def outputs(self, inputs: list[Tensor]) -> list[Any]:
        outputs: list[Any] = self.network(inputs, self.setup.options.precision)
        return outputs


class Parallel(nn.Module):
    """A module that computes a replica on each device, and returns a list with the outputs of each device."""

    def __init__(self, module: nn.Module, devices: Sequence[torch.device]) -> None:
        super().__init__()
        self.module = module
        self.devices = list(devices)

    def forward(self, inputs: Sequence[Tensor], precision: str = "fp32") -> list[Any]:
        """Split the inputs along dimension 0, and return each part's outputs on its device.

        If there are fewer samples than devices, some devices are not used.
        """
        parts = list(zip(*(scatter(each, self.devices) for each in inputs), strict=True))
        replicas = self._replicas(len(parts))
        arguments = [(replica, list(part), precision) for replica, part in zip(replicas, parts, strict=True)]
        return run_in_parallel([forward] * len(parts), arguments, self.devices)

    def _replicas(self, count: int) -> list[nn.Module]:
        if count > 1 and self.devices[0].type == "cuda":
            return [*replicate(self.module, self.devices[:count])]
        return [self.module] * count


def scatter(tensor: Tensor, devices: Sequence[torch.device]) -> list[Tensor]:
    """Return the parts of a tensor along dimension 0, each on its device. No part is empty."""
    parts = tensor.tensor_split(min(len(tensor), len(devices)))
    return [part.to(device, non_blocking=True) for part, device in zip(parts, devices, strict=False)]


def parallel_loss(criterion: Callable[[Any, Tensor], Tensor], outputs: Sequence[Any], targets: Tensor) -> Tensor:
    """Return the mean loss over all samples, on the targets' device. Each part is weighted by its number of samples."""
    devices = [output.device for output in outputs]
    parts = scatter(targets, devices)
    losses = run_in_parallel([criterion] * len(parts), list(zip(outputs, parts, strict=True)), devices)
    weighted = [loss.to(targets.device) * (len(part) / len(targets)) for loss, part in zip(losses, parts, strict=True)]
    return torch.stack(weighted).sum()


class _Call(nn.Module):
    """Wraps a function as a module, because torch's parallel_apply takes modules."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def run_in_parallel(
    functions: Sequence[Callable[..., Any]], arguments: Sequence[Sequence[Any]], devices: Sequence[torch.device]
) -> list[Any]:
    """Call each function with its arguments and return the results. On GPUs, each function runs in its own thread
    with its own current device.
    """
    if devices[0].type != "cuda" or len(functions) == 1:
        return [function(*each) for function, each in zip(functions, arguments, strict=True)]
    results: list[Any] = parallel_apply(
        [_Call(each) for each in functions], arguments, devices=devices[: len(functions)]
    )
    return results

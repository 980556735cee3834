"""The strategy dp: one process uses all GPUs of the node, and each step copies the model to every GPU."""

from typing import Any

import torch
from torch import Tensor, nn

from orchestrator.training import precision
from orchestrator.training.strategies.base import Setup, Strategy


class Dp(Strategy):
    """Trains with nn.DataParallel. It scatters each batch, and the first GPU gathers the outputs and computes the
    loss.
    """

    one_process = True

    def wrap(self, model: nn.Module) -> nn.Module:
        devices = all_devices(self.setup)
        computed = precision.Computed(model, self.setup.options.precision)
        return nn.DataParallel(computed, devices) if len(devices) > 1 else computed

    @property
    def devices(self) -> list[torch.device]:
        return all_devices(self.setup)

    def outputs(self, inputs: list[Tensor]) -> Any:
        return self.network(*inputs)  # autocast is applied inside, because each device has its own thread


def all_devices(setup: Setup) -> list[torch.device]:
    """Return all GPUs that this process sees, beginning with the GPU of `setup`. If `setup` uses the CPU, return
    only the CPU.
    """
    if setup.device.type != "cuda":
        return [setup.device]
    own = setup.device.index or 0
    others = [number for number in range(torch.cuda.device_count()) if number != own]
    return [torch.device("cuda", number) for number in (own, *others)]

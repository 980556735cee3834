"""The strategy model-parallel. Each device of one process holds some layers, and a batch passes through all devices."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from orchestrator.training import precision
from orchestrator.training.strategies.base import Strategy
from orchestrator.training.strategies.dp import all_devices
from orchestrator.training.strategies.layers import cut


class ModelParallel(Strategy):
    """Trains a model that does not fit on one device. Only one device computes at a time, unlike with `pipeline`."""

    one_process = True

    def place(self, model: nn.Module) -> nn.Module:
        # Without GPUs the model is split all the same, into two pieces on the CPU.
        places = self._places()
        self.pieces = cut(model, len(places))
        for piece, device in zip(self.pieces, places, strict=True):
            piece.to(device)
        return model

    def _places(self) -> list[torch.device]:
        return all_devices(self.setup) if self.setup.device.type == "cuda" else [self.setup.device] * 2

    @property
    def devices(self) -> list[torch.device]:
        return all_devices(self.setup)

    def wrap(self, model: nn.Module) -> nn.Module:
        return Chain(self.pieces, self._places())

    def computed(self) -> Sequence[nn.Module]:
        return self.pieces

    def predict(self, inputs: list[Tensor]) -> Tensor:
        return precision.forward(self.network, inputs, self.setup.options.precision)


class Chain(nn.Module):
    """A module that calls pieces on their devices in order, and returns the outputs on the first device."""

    def __init__(self, pieces: Sequence[nn.Module], devices: Sequence[torch.device]) -> None:
        super().__init__()
        self.pieces = nn.ModuleList(pieces)
        self.devices = list(devices)

    def forward(self, value: Tensor) -> Tensor:
        """Return the outputs of the last piece, on the first device."""
        for piece, device in zip(self.pieces, self.devices, strict=True):
            value = piece(value.to(device))
        return value.to(self.devices[0])

"""Copies a state to host memory, so that training continues while the copy is written.

The memory is reused for the next copy, because allocating it takes as long as copying. Memory for tensors of GPUs is
pinned, so that the device copies at full speed.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Place = tuple[object, ...]


class Staging:
    """Host memory for a copy of a state. A copy is valid until the next copy is made."""

    def __init__(self) -> None:
        self._kept: dict[Place, Tensor] = {}
        self._devices: set[torch.device] = set()

    def copy(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Copy `state` with all its tensors to host memory. The copy is complete when this returns."""
        self._kept, before = {}, self._kept
        self._devices.clear()
        copied: dict[str, Any] = self._copy(state, (), before)
        for device in self._devices:
            torch.cuda.current_stream(device).synchronize()  # a copy runs on a stream of its source device
        return copied

    def _copy(self, value: Any, place: Place, before: Mapping[Place, Tensor]) -> Any:
        if isinstance(value, Mapping):
            return {key: self._copy(each, (*place, key), before) for key, each in value.items()}
        if isinstance(value, list | tuple):
            copies = [self._copy(each, (*place, number), before) for number, each in enumerate(value)]
            return copies if isinstance(value, list) else tuple(copies)
        if not isinstance(value, Tensor):
            return value
        kept = before.get(place)
        if kept is None or kept.shape != value.shape or kept.dtype != value.dtype:
            kept = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
        self._kept[place] = kept
        if value.is_cuda:
            self._devices.add(value.device)
        return kept.copy_(value.detach(), non_blocking=True)

"""In which numbers the forward pass is computed; weights, gradients and the loss stay float32."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def forward(model: nn.Module, inputs: list[Tensor], precision: str) -> Tensor:
    """Return the model's outputs as float32, computed in bfloat16 where `precision` is bf16 (torch.autocast)."""
    if precision == "fp32":
        outputs: Tensor = model(*inputs)
        return outputs
    with torch.autocast(inputs[0].device.type, dtype=torch.bfloat16):
        outputs = model(*inputs)
    return outputs.float()

"""In which numbers the forward pass is computed; weights, gradients and the loss stay float32."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from orchestrator.training.errors import UserError

_HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def forward(model: nn.Module, inputs: list[Tensor], precision: str) -> Tensor:
    """Return the model's outputs as float32, computed in 16 bits where `precision` says so (torch.autocast)."""
    if precision == "fp32":
        outputs: Tensor = model(*inputs)
        return outputs
    with torch.autocast(inputs[0].device.type, dtype=_HALVES[precision]):
        outputs = model(*inputs)
    return outputs.float()


def scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """Return what keeps small gradients of fp16 from vanishing; with another precision it does nothing."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


def check(precision: str, device: torch.device) -> None:
    """Refuse, by a UserError, a precision that the device can't compute in."""
    if precision == "fp16" and device.type != "cuda":
        raise UserError(
            f"--precision fp16 computes on GPUs only, and this run is on the {device.type.upper()}: "
            "choose bf16, which needs no scaling of gradients, or fp32."
        )

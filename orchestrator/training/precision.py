"""The number formats of the computation. Weights, gradients and the loss are float32 in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from orchestrator.protocol.training_options import Precision
from orchestrator.training.errors import UserError

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
"""Precisions whose forward pass uses 16 bits; fp8 uses them outside of its matrix products."""


def resolve(precision: Precision, device: torch.device) -> Precision:
    """Return the precision, with `auto` replaced by TF32 if the device supports it, else by fp32."""
    if precision != "auto":
        return precision
    return "tf32" if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"


def set_up(precision: str, device: torch.device) -> None:
    """If the precision is fp32, forbid TF32 for float32 matrix products on GPUs. Otherwise allow TF32."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
        torch.backends.cudnn.allow_tf32 = precision != "fp32"


def forward(model: nn.Module, inputs: Sequence[Tensor], precision: str) -> Tensor:
    """Return the model's outputs as float32. If the precision has 16 bits, the model is computed under
    torch.autocast.
    """
    if precision not in HALVES:
        outputs: Tensor = model(*inputs)
        return outputs
    with torch.autocast(inputs[0].device.type, dtype=HALVES[precision]):
        outputs = model(*inputs)
    return outputs.float()


class Computed(nn.Module):
    """Wraps a module and applies autocast inside its forward, because DataParallel calls each replica in a thread."""

    def __init__(self, module: nn.Module, precision: str) -> None:
        super().__init__()
        self.module = module
        self.precision = precision

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the module's outputs as float32."""
        return forward(self.module, inputs, self.precision)


def convert(model: nn.Module, precision: str) -> nn.Module:
    """Return the model. For fp8, torchao's float8 layers replace the model's linear layers under the same names."""
    if precision != "fp8":
        return model
    from torchao.float8 import convert_to_float8_training

    converted: nn.Module = convert_to_float8_training(model, module_filter_fn=_fits_float8)
    return converted


def _fits_float8(module: nn.Module, _name: str) -> bool:
    """Return whether this is a linear layer whose two sizes are multiples of 16, as float8 products require."""
    return isinstance(module, nn.Linear) and module.in_features % 16 == 0 and module.out_features % 16 == 0


def scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """Return a gradient scaler. It keeps small fp16 gradients from becoming 0, and is disabled for other precisions."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


def check(precision: str, device: torch.device) -> None:
    """Raise UserError if the device can't compute in this precision."""
    if precision == "fp16" and device.type != "cuda":
        raise UserError(
            f"--precision fp16 computes on GPUs only, and this run is on the {device.type.upper()}: "
            "choose bf16, which needs no scaling of gradients, or fp32."
        )
    if precision == "fp8" and find_spec("torchao") is None:
        raise UserError("--precision fp8 needs torchao: pip install torchao, or choose bf16.")
    if precision == "fp8" and not (device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)):
        what = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
        raise UserError(
            f"--precision fp8 computes on GPUs of compute capability 8.9 (Ada, Hopper) or newer, and this run is on "
            f"{what}: choose bf16."
        )

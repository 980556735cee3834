"""Measures how well a training uses its GPUs: the fraction of their peak FLOP/s (MFU), and the peak memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from orchestrator.protocol import quantities
from orchestrator.training.data.sampler import pick
from orchestrator.training.data.samples import Tensors
from orchestrator.training.distributed import group
from orchestrator.training.strategies.base import Strategy

TERA = 1e12
# TFLOP/s of dense bf16 matrices, by a part of the device's name; the first match counts.
_BF16 = (
    ("B200", 2250.0), ("H200", 989.0), ("GH200", 989.0), ("H100 PCIe", 756.0), ("H100 NVL", 835.0), ("H100", 989.0),
    ("H800", 989.0), ("A100", 312.0), ("A800", 312.0), ("L40S", 362.0), ("A40", 150.0), ("A10G", 70.0), ("A10", 125.0),
    ("L4", 121.0), ("RTX 4090", 165.0), ("RTX 3090", 71.0),
)  # fmt: skip
_PART_OF_BF16 = {"bf16": 1.0, "fp16": 1.0, "tf32": 0.5, "fp8": 2.0}


def peak(name: str, precision: str) -> float | None:
    """Return the peak FLOP/s of a device for matrix products in this precision, or None if it is not known."""
    part = _PART_OF_BF16.get(precision)
    known = next((value for word, value in _BF16 if word in name), None)
    return None if part is None or known is None else known * part * TERA


def forward_flops(strategy: Strategy, tensors: Tensors) -> int:
    """Return the FLOPs of the forward pass for one sample, summed over the ranks that share the sample. All ranks must
    call this.

    The FLOPs are counted while the first sample is evaluated without compilation, which changes no state.
    """
    from torch.utils.flop_counter import FlopCounterMode

    *inputs, _ = pick(tensors, range(1))
    strategy.model.eval()
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as counter:
        strategy.predict(inputs)
    own = counter.get_total_flops()
    return own if strategy.shares_data else round(group.sum_over_ranks([own])[0])


class Utilization:
    """Measures MFU and peak memory of GPUs. Nothing is measured on CPUs."""

    def __init__(self, devices: Sequence[torch.device], ranks: int, precision: str) -> None:
        self._devices = [device for device in devices if device.type == "cuda"]
        name = torch.cuda.get_device_name(self._devices[0]) if self._devices else ""
        one = peak(name, precision)
        self._peak = one * ranks * len(self._devices) if one else None
        self._flops = 0

    @property
    def is_measured(self) -> bool:
        """Return whether the peak FLOP/s of the device is known."""
        return self._peak is not None

    def measure(self, strategy: Strategy, tensors: Tensors) -> None:
        """Count the FLOPs of one sample. All ranks must call this."""
        if strategy.setup.options.tensor_ranks == 1:  # otherwise a rank sees only its part of a sample
            self._flops = forward_flops(strategy, tensors)

    def values(self, rate: float | None) -> dict[str, float]:
        """Return `mfu` at this rate in samples per second, and `memory` in bytes. Values that are not known are left
        out.

        The backward pass counts as two forward passes. Recomputation by activation checkpointing does not count.
        """
        found: dict[str, float] = {}
        if self._peak and self._flops and rate:
            found["mfu"] = round(3 * self._flops * rate / self._peak, 4)
        if self._devices:
            found["memory"] = max(torch.cuda.max_memory_allocated(device) for device in self._devices)
        return found


def in_progress_line(values: dict[str, float], rate: float | None, tokens: int | None) -> list[str]:
    """Return tokens per second, MFU and peak memory as texts for a progress line. Values that are not known are left
    out.
    """
    parts = [quantities.rate(rate * tokens, "tokens")] if rate and tokens else []
    parts += [f"MFU {100 * values['mfu']:.1f} %"] if "mfu" in values else []
    return [*parts, *([f"peak {quantities.size(values['memory'])}"] if "memory" in values else [])]

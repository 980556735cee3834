"""Samples a run's GPUs with NVIDIA's library NVML. Without this library there are no GPU samples."""

from __future__ import annotations

from collections.abc import Collection

from orchestrator.node.system.gpus.inventory import Gpu
from orchestrator.node.system.gpus.nvml import open_nvml
from orchestrator.protocol.samples import GpuSample


def gpu_samples(given: Collection[str]) -> tuple[GpuSample, ...]:
    """Return samples of the cards whose UUIDs are in `given`. MIG instances are left out, because NVML does not report
    their utilization.
    """
    library = open_nvml()
    return tuple(sample_of(gpu) for gpu in library.levels() if gpu.uuid in given) if library is not None else ()


def sample_of(gpu: Gpu) -> GpuSample:
    """Convert a GPU's present values to a sample."""
    return GpuSample(
        index=gpu.index,
        use=gpu.utilization,
        memory=gpu.memory_used,
        memory_total=gpu.memory_total,
        power=gpu.power,
        temperature=gpu.temperature,
        clock=gpu.sm_clock,
        throttled=", ".join(gpu.throttle_reasons or ()),
        ecc=gpu.ecc_volatile,
    )

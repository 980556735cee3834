"""Samples a run's GPUs with NVIDIA's library NVML. Without this library there are no GPU samples."""

from __future__ import annotations

from orchestrator.node.system.gpus.inventory import Gpu
from orchestrator.node.system.gpus.nvml import open_nvml
from orchestrator.protocol.places.devices import Device, named_by
from orchestrator.protocol.samples import GpuSample


def gpu_samples(visible: str | None) -> tuple[GpuSample, ...]:
    """Return samples of the GPUs. `visible` is the value of CUDA_VISIBLE_DEVICES; None for all GPUs."""
    library = open_nvml()
    return tuple(sample_of(gpu) for gpu in chosen(library.levels(), visible)) if library is not None else ()


def chosen(gpus: tuple[Gpu, ...], visible: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES selects. MIG instances are left out, because NVML does not report their
    utilization.
    """
    selected = {each.card for each in named_by(visible, [Device(gpu.uuid, gpu.index, gpu.uuid) for gpu in gpus])}
    return tuple(gpu for gpu in gpus if gpu.uuid in selected)


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

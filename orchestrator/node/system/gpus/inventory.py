"""What is known of a machine's GPUs: its cards in PCI order, and what each of them does. None is what nobody tells."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuProcess:
    """A process that has the card open; its pid is the host's, who may know more processes than this namespace."""

    pid: int
    memory: int | None = None  # bytes
    draws: bool = False  # has it a graphics context, as a desktop's programs have?
    gpu_instance: int | None = None  # of MIG
    compute_instance: int | None = None


@dataclass(frozen=True)
class MigInstance:
    """A part of a card that a process can be given."""

    uuid: str
    name: str | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True)
class Gpu:
    """One card: bytes, watts, degrees Celsius, MHz, per cent."""

    index: int  # as nvidia-smi counts, and CUDA with CUDA_DEVICE_ORDER=PCI_BUS_ID
    uuid: str
    name: str | None = None
    bus_id: str | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    utilization: int | None = None
    power: float | None = None
    power_limit: float | None = None
    temperature: int | None = None
    sm_clock: int | None = None
    throttle_reasons: tuple[str, ...] | None = None  # what slows it beyond being idle
    ecc_volatile: int | None = None  # uncorrectable errors since the driver was loaded
    ecc_aggregate: int | None = None  # uncorrectable errors of its life
    pending_retirement: bool | None = None  # pages or rows that are replaced at its next reset
    remap_failed: bool | None = None  # no spare rows are left: it is to be replaced
    compute_mode: str | None = None
    persistence: bool | None = None
    mig: bool | None = None
    instances: tuple[MigInstance, ...] = ()
    processes: tuple[GpuProcess, ...] | None = None


@dataclass(frozen=True)
class GpuInventory:
    """All cards of a machine that this process may use, by one way of asking."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None  # its version
    cuda: tuple[int, int] | None = None  # the newest CUDA that this driver runs

"""The data types that describe a machine's GPUs: its cards in PCI order, with their present state. Unknown values
are None.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuProcess:
    """A process that has a card open. Its pid is valid on the host, but may be invalid in this process's container."""

    pid: int
    memory: int | None = None  # bytes
    draws: bool = False  # whether the process has a graphics context, as the programs of a desktop have
    gpu_instance: int | None = None  # the MIG instance that the process uses, by two numbers
    compute_instance: int | None = None


@dataclass(frozen=True)
class MigInstance:
    """A MIG instance: a part of a card that can be assigned to a process."""

    uuid: str
    name: str | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True)
class Gpu:
    """A GPU card. Its values are in bytes, watts, degrees Celsius, MHz and per cent."""

    index: int  # the number in nvidia-smi
    uuid: str
    name: str | None = None
    bus_id: str | None = None
    minor: int | None = None  # N in the name of the card's device file, /dev/nvidiaN
    memory_total: int | None = None
    memory_used: int | None = None
    utilization: int | None = None
    power: float | None = None
    power_limit: float | None = None
    temperature: int | None = None
    sm_clock: int | None = None
    throttle_reasons: tuple[str, ...] | None = None  # the reasons for a reduced clock, except idleness
    ecc_volatile: int | None = None  # uncorrectable errors since the driver was loaded
    ecc_aggregate: int | None = None  # uncorrectable errors in the card's lifetime
    pending_retirement: bool | None = None  # pages or rows that the next reset will replace
    remap_failed: bool | None = None  # True if no spare rows are left, so that the card must be replaced
    compute_mode: str | None = None
    persistence: bool | None = None
    mig: bool | None = None
    instances: tuple[MigInstance, ...] = ()
    processes: tuple[GpuProcess, ...] | None = None


@dataclass(frozen=True)
class GpuInventory:
    """All cards of a machine that this process may use, as NVML or nvidia-smi reports them."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None  # the driver's version
    cuda: tuple[int, int] | None = None  # the newest version of CUDA that this driver supports

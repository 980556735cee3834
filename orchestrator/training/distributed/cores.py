"""Pins a rank to the cores near its GPU, so that it reaches GPU and memory without crossing to another socket."""

import contextlib
import os
from pathlib import Path

import torch

from orchestrator.training.distributed.ranks import Ranks

PCI = Path("/sys/bus/pci/devices")


def stay_near(device: torch.device, ranks: Ranks, folder: Path = PCI) -> str:
    """Restrict all threads of this process to the cores, among those it may use, that are near its GPU. Return a note
    about that.

    Nothing is changed, and the note is "", in three cases: all allowed cores are near, the kernel reports no near
    cores, or the near cores are fewer than this rank's even share of the allowed cores.
    """
    listed = near_cores(_address(device), folder)
    allowed = os.sched_getaffinity(0) if listed else set()
    near = listed & allowed
    if near == allowed or not near or len(near) * ranks.local_world_size < len(allowed):
        return ""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # the thread has ended
            os.sched_setaffinity(int(thread), near)
    return f"on the {len(near)} of {len(allowed)} cores that are near the GPU"


def near_cores(address: str, folder: Path = PCI) -> set[int]:
    """Return the cores that sysfs reports as near to the device at a PCI address; empty if sysfs reports none."""
    try:
        listed = (folder / address / "local_cpulist").read_text().strip() if address else ""
        ranges = [part.partition("-") for part in listed.split(",") if part]
        return {core for first, _, last in ranges for core in range(int(first), int(last or first) + 1)}
    except (OSError, ValueError):
        return set()


def _address(device: torch.device) -> str:
    """Return a GPU's PCI address as sysfs writes it. Return "" for a CPU, or if torch does not report the address."""
    if device.type != "cuda":
        return ""
    found = torch.cuda.get_device_properties(device)
    parts = [getattr(found, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    if None in parts:
        return ""
    domain, bus, slot = (int(part or 0) for part in parts)
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"

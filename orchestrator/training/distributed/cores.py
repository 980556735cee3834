"""The cores near a rank's GPU: a rank that stays on them reaches GPU and memory without crossing to another socket."""

import contextlib
import os
from pathlib import Path

import torch

from orchestrator.training.distributed.ranks import Ranks

PCI = Path("/sys/bus/pci/devices")


def stay_near(device: torch.device, ranks: Ranks, folder: Path = PCI) -> str:
    """Keep this process, all threads of it, on those of its cores that are near its GPU; returns what to say of it.

    Nothing changes, and "" is returned, where there is no choice, where the kernel does not tell which are near, and
    where they are fewer than this rank's even share of the cores that the node's ranks have.
    """
    listed = near_cores(_address(device), folder)
    allowed = os.sched_getaffinity(0) if listed else set()
    near = listed & allowed
    if near == allowed or not near or len(near) * ranks.local_world_size < len(allowed):
        return ""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), near)
    return f"on the {len(near)} of {len(allowed)} cores that are near the GPU"


def near_cores(address: str, folder: Path = PCI) -> set[int]:
    """Return the cores near the device at this PCI address, as the kernel lists them; empty where it does not."""
    try:
        listed = (folder / address / "local_cpulist").read_text().strip() if address else ""
        ranges = [part.partition("-") for part in listed.split(",") if part]
        return {core for first, _, last in ranges for core in range(int(first), int(last or first) + 1)}
    except (OSError, ValueError):
        return set()


def _address(device: torch.device) -> str:
    """Return a GPU's PCI address, in the kernel's words; "" for a CPU, and for a torch that does not know it."""
    if device.type != "cuda":
        return ""
    found = torch.cuda.get_device_properties(device)
    parts = [getattr(found, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    if None in parts:
        return ""
    domain, bus, slot = (int(part or 0) for part in parts)
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"

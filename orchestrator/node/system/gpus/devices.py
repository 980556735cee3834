"""Lists the GPUs of this machine that ranks can use, and the GPUs that programs are using."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from typing import Any

from orchestrator.node.system.gpus.inventory import Gpu, GpuInventory, GpuProcess
from orchestrator.node.system.gpus.nvml import look
from orchestrator.node.system.kernel_files import read_text
from orchestrator.node.system.private import user_name
from orchestrator.node.system.processes import owner_of
from orchestrator.protocol.places.devices import VISIBLE, Device, words_of
from orchestrator.protocol.reading import names_in

BY_DRIVER = "/proc/driver/nvidia/gpus"
DEV = "/dev"
# If more bytes of a card's memory are taken, the card is in use. Drivers and desktops take less.
USED_BYTES = 2 << 30
# services that use GPUs on behalf of other programs
SERVICES = ("nvidia-cuda-mps", "nvidia-persiste", "nv-hostengine", "dcgm")


@functools.lru_cache(maxsize=1)
def machine_devices() -> tuple[Device, ...]:
    """Return the GPUs that this process may open, in PCI order. The list is read once per process."""
    found = devices_of(look()) or _by_driver(BY_DRIVER) or _by_device_files(DEV)
    return tuple(found) or tuple(_by_variable(os.environ.get(VISIBLE, "")))


def devices_of(inventory: GpuInventory) -> list[Device]:
    """Return the devices that can be assigned to ranks: each whole card, and each MIG instance of a divided card."""
    found: list[Device] = []
    for gpu in inventory.gpus:
        names = [each.uuid for each in gpu.instances] if gpu.mig else [gpu.uuid]
        found += [Device(name, gpu.index, gpu.uuid) for name in names]
    return found


def _by_driver(folder: str) -> list[Device]:
    """Return the cards that NVIDIA's kernel driver lists in /proc."""
    found = []
    for index, bus in enumerate(names_in(folder)):
        information = read_text(f"{folder}/{bus}/information")
        uuid = re.search(r"GPU UUID:\s*(GPU-[0-9a-f-]+)\s*$", information, re.MULTILINE)
        name = uuid[1] if uuid else f"gpu-{index}"
        found.append(Device(name, index, name))
    return found


def _by_device_files(folder: str) -> list[Device]:
    """Return one device per device file of a card. WSL2 has a single device file, which counts as one card."""
    names = [name for name in names_in(folder) if re.fullmatch(r"nvidia\d+", name)] or [
        name for name in names_in(folder) if name == "dxg"
    ]
    return [Device(f"gpu-{index}", index, f"gpu-{index}") for index in range(len(names))]


def _by_variable(visible: str) -> list[Device]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names. They are used if the machine gives no other information."""
    words = words_of(visible)
    names = [f"gpu-{word}" if word.isdigit() else word for word in words]
    numbers = [int(word) if word.isdigit() else place for place, word in enumerate(words)]
    return [Device(name, number, name) for name, number in zip(names, numbers)]


def used_by_others() -> dict[str, dict[str, Any]]:
    """Return a dict from the name of each GPU device in use to the user of the program that uses it. The ranks of runs
    count as programs too.

    A device is in use if a program computes on it or if much of its memory is taken. The user is null if this process
    can't see the program, for example because the program runs in another container.
    """
    found: dict[str, dict[str, Any]] = {}
    for gpu in look().gpus:
        for name, processes, used in _parts(gpu):
            computing = [each for each in processes if not each.draws and _command(each.pid) not in SERVICES]
            if computing:
                found[name] = _holder(computing[0].pid)
            elif used is not None and used > USED_BYTES and not processes:
                found[name] = {**_holder(None), "program": f"a program that is not visible here ({used >> 20} MiB)"}
    return found


def _parts(gpu: Gpu) -> list[tuple[str, tuple[GpuProcess, ...], int | None]]:
    """Return (name, processes, bytes of memory in use) for each device of a card: the card itself, or its MIG
    instances.
    """
    processes = gpu.processes or ()
    if not gpu.mig:
        return [(gpu.uuid, processes, gpu.memory_used)]
    return [
        (each.uuid, tuple(p for p in processes if p.gpu_instance == each.gpu_instance
                          and p.compute_instance == each.compute_instance), each.memory_used)
        for each in gpu.instances
    ]  # fmt: skip


def _holder(pid: int | None) -> dict[str, Any]:
    uid = owner_of(pid) if pid is not None else None
    program = f"{_command(pid) or 'a program'}, pid {pid}"
    return {"uid": uid, "user": user_name(uid), "run": None, "since": None, "program": program}


def _command(pid: int | None) -> str:
    return "".join(each for each in read_text(f"/proc/{pid}/comm").strip() if each.isprintable())


def gpus(environ: Mapping[str, str] = os.environ) -> int:
    """Return the number of NVIDIA GPUs that this process may use, without initializing CUDA.

    If CUDA_VISIBLE_DEVICES is set in the environment, it takes precedence over the machine's GPUs.
    """
    visible = environ.get(VISIBLE)
    return len(machine_devices()) if visible is None else len(words_of(visible))

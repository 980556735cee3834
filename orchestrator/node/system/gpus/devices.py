"""Lists the GPUs of this machine that ranks can use, and the GPUs that programs are using."""

from __future__ import annotations

import functools
import json
import os
import re
import select
import signal
import traceback
from collections.abc import Mapping
from typing import Any

from orchestrator.node.system.gpus.inventory import Gpu, GpuInventory, GpuProcess
from orchestrator.node.system.gpus.nvml import look, nvml_problem
from orchestrator.node.system.kernel_files import read_text
from orchestrator.node.system.private import user_name
from orchestrator.node.system.processes import owner_of
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.places.devices import VISIBLE, Device, words_of
from orchestrator.protocol.reading import names_in

BY_DRIVER = "/proc/driver/nvidia/gpus"
DEV = "/dev"
# If more bytes of a card's memory are taken, the card is in use. Drivers and desktops take less.
USED_BYTES = 2 << 30
# services that use GPUs on behalf of other programs
NVML_SECONDS = 30.0  # for NVML to list the GPUs; a broken driver may never answer
SERVICES = ("nvidia-cuda-mps", "nvidia-persiste", "nv-hostengine", "dcgm")


@functools.lru_cache(maxsize=1)
def machine_devices() -> tuple[Device, ...]:
    """Return the GPUs that this process may open, in PCI order. The list is read once per process."""
    return tuple(_listed() or _by_variable(os.environ.get(VISIBLE, "")))


def _listed() -> list[Device]:
    return devices_of(look()) or _by_driver(BY_DRIVER) or _by_device_files()


def devices_apart() -> tuple[Device, ...]:
    """Return the GPUs that the machine lists and a process may open; empty if they are not known.

    A child process looks for them. If this process opened a GPU, the processes that it forks could not use the GPU.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write_end, json.dumps(_listed()).encode())
        except Exception:  # noqa: BLE001 (it must not go on as a second parent)
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as file:
        answer = file.read() if select.select([file], [], [], NVML_SECONDS)[0] else b""
    if not answer:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return tuple(Device(*each) for each in parse_json(answer)) if answer else ()


def gpu_facts() -> dict[str, Any]:
    """Return what a submission must know about this machine's GPUs: the devices, the shell's CUDA_VISIBLE_DEVICES, and
    why NVML can't be initialized.
    """
    devices = [each._asdict() for each in machine_devices()]
    return {"devices": devices, "visible": os.environ.get(VISIBLE), "nvml_problem": nvml_problem()}


def devices_of(inventory: GpuInventory) -> list[Device]:
    """Return the devices that can be assigned to ranks: each whole card, and each MIG instance of a divided card. Cards
    that this process may not open are left out.
    """
    found: list[Device] = []
    for number, gpu in enumerate(gpu for gpu in inventory.gpus if _may_open(gpu.minor)):
        names = [each.uuid for each in gpu.instances] if gpu.mig else [gpu.uuid]
        found += [Device(name, number, gpu.uuid) for name in names]
    return found


def _device_files() -> list[str]:
    return [name for name in names_in(DEV) if re.fullmatch(r"nvidia\d+", name)]


def _may_open(minor: int | None) -> bool:
    """Return whether this process may open a card, although NVML may list cards that the process may not open. The
    kernel checks the mode of the card's device file, and the devices that the process's cgroup allows.

    A card counts if its minor number is unknown, or if the machine has no device files of cards (WSL2).
    """
    return minor is None or not _device_files() or _can_access(f"nvidia{minor}")


def _can_access(name: str) -> bool:
    return os.access(f"{DEV}/{name}", os.R_OK | os.W_OK)


def _by_driver(folder: str) -> list[Device]:
    """Return the cards that NVIDIA's kernel driver lists in /proc."""
    found: list[Device] = []
    for bus in names_in(folder):
        information = read_text(f"{folder}/{bus}/information")
        uuid = re.search(r"GPU UUID:\s*(GPU-[0-9a-f-]+)\s*$", information, re.MULTILINE)
        minor = re.search(r"Device Minor:\s*(\d+)\s*$", information, re.MULTILINE)
        if _may_open(int(minor[1]) if minor else None):
            name = uuid[1] if uuid else f"gpu-{len(found)}"
            found.append(Device(name, len(found), name))
    return found


def _by_device_files() -> list[Device]:
    """Return one device per device file of a card. WSL2 has a single device file, which counts as one card."""
    files = _device_files() or [name for name in names_in(DEV) if name == "dxg"]
    return [Device(f"gpu-{index}", index, f"gpu-{index}") for index, _ in enumerate(filter(_can_access, files))]


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

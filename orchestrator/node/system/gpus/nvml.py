"""Reads the GPUs from NVIDIA's management library (NVML) with ctypes, without CUDA and without starting a process.

If the card or the driver does not provide a value, or if this process may not read it, the field is None.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from orchestrator.node.system.gpus.inventory import Gpu, GpuInventory, GpuProcess, MigInstance

LIBRARIES = (
    "libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/run/opengl-driver/lib/libnvidia-ml.so.1",  # NixOS
)
INSUFFICIENT_SIZE, UNINITIALIZED = 7, 1
NOT_AVAILABLE = (1 << 64) - 1
NO_INSTANCE = 0xFFFFFFFF
TEXT_BYTES = 96
MOST_PROCESSES = 4096
UNCORRECTED, VOLATILE, AGGREGATE = 1, 0, 1
SM_CLOCK, GPU_SENSOR = 1, 0
COMPUTE_MODES = ("default", "exclusive-thread", "prohibited", "exclusive-process")
# Bits for the reasons of a reduced clock. Three harmless reasons are left out: idleness, and clocks that were set by
# applications or by synchronization.
THROTTLES = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal",
    0x80: "power brake",
}  # fmt: skip


def look() -> GpuInventory:
    """Return this machine's GPUs as NVML reports them, or as nvidia-smi reports them if NVML can't be used."""
    from orchestrator.node.system.gpus.nvidia_smi import look_by_program

    library = open_nvml()
    return library.read() if library is not None else look_by_program()


def open_nvml() -> Nvml | None:
    """Load and initialize NVML, once per process. Return None if NVML is missing or the driver does not answer."""
    return _opened()[0]


def nvml_problem() -> str:
    """Return why NVML can't be initialized, in NVML's words; "" if it can, or if this machine has no NVML."""
    return _opened()[1]


@functools.lru_cache(maxsize=1)
def _opened() -> tuple[Nvml | None, str]:
    problem = ""
    try:
        import ctypes
    except ImportError:
        return None, problem
    for name in LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        nvml = Nvml(library)
        code = nvml.start()
        if code == 0:
            return nvml, ""
        problem = problem or nvml.error_text(code)
    return None, problem


class Nvml:
    """The loaded NVML library. Its handles are valid only in this process, so a forked child must load the library
    again.
    """

    def __init__(self, library: Any) -> None:
        import ctypes

        self._library, self._c = library, ctypes
        self._known: tuple[tuple[int, str, Any], ...] = ()

    def start(self) -> int:
        """Initialize the library, and return NVML's code: 0 after a success."""
        return self._call("nvmlInit_v2")

    def error_text(self, code: int) -> str:
        """Return NVML's words for a code, such as `Driver/library version mismatch`."""
        function = getattr(self._library, "nvmlErrorString", None)
        if function is None:
            return f"error {code}"
        function.restype = self._c.c_char_p
        return str(function(code).decode("ascii", "replace"))

    def read(self) -> GpuInventory:
        """Return all GPUs with all their present values."""
        c = self._c
        version = c.c_int()
        cuda = version.value if self._call("nvmlSystemGetCudaDriverVersion_v2", c.byref(version)) == 0 else 0
        return GpuInventory(
            tuple(self._gpu(*each) for each in self._devices()),
            self._text("nvmlSystemGetDriverVersion"),
            (cuda // 1000, cuda % 1000 // 10) if cuda else None,
        )

    def levels(self) -> tuple[Gpu, ...]:
        """Return all GPUs with only the values that change often. Reading them is cheap, and is done every 2 s."""
        self._known = self._known or tuple(self._devices())
        return tuple(self._levels(*each) for each in self._known)

    def _devices(self) -> Iterator[tuple[int, str, Any]]:
        for index in range(self._number("nvmlDeviceGetCount_v2") or 0):
            device = self._c.c_void_p()
            if self._call("nvmlDeviceGetHandleByIndex_v2", self._c.c_uint(index), self._c.byref(device)) != 0:
                continue  # this process may not use the card, or the card no longer answers
            uuid = self._text("nvmlDeviceGetUUID", device)
            if uuid is not None:
                yield index, uuid, device

    def _levels(self, index: int, uuid: str, device: Any) -> Gpu:
        total, used = self._memory(device)
        power = self._number("nvmlDeviceGetPowerUsage", device)
        use = self._numbers("nvmlDeviceGetUtilizationRates", device, count=2, packed=True)
        return Gpu(
            index=index,
            uuid=uuid,
            memory_total=total,
            memory_used=used,
            utilization=use[0] if use else None,
            power=power / 1000 if power is not None else None,
            temperature=self._number("nvmlDeviceGetTemperature", device, self._c.c_int(GPU_SENSOR)),
            sm_clock=self._number("nvmlDeviceGetClockInfo", device, self._c.c_int(SM_CLOCK)),
            throttle_reasons=self._throttles(device),
            ecc_volatile=self._errors(device, VOLATILE),
        )

    def _gpu(self, index: int, uuid: str, device: Any) -> Gpu:
        mig = self._numbers("nvmlDeviceGetMigMode", device, count=2)
        remapped = self._numbers("nvmlDeviceGetRemappedRows", device, count=4)
        retired = self._number("nvmlDeviceGetRetiredPagesPendingStatus", device)
        pending = [bool(each) for each in (retired, remapped and remapped[2]) if each is not None]
        limit = self._number("nvmlDeviceGetEnforcedPowerLimit", device)
        mode = self._number("nvmlDeviceGetComputeMode", device)
        persistence = self._number("nvmlDeviceGetPersistenceMode", device)
        return replace(
            self._levels(index, uuid, device),
            name=self._text("nvmlDeviceGetName", device),
            bus_id=self._bus_id(device),
            minor=self._number("nvmlDeviceGetMinorNumber", device),
            power_limit=limit / 1000 if limit is not None else None,
            ecc_aggregate=self._errors(device, AGGREGATE),
            pending_retirement=any(pending) if pending else None,
            remap_failed=bool(remapped[3]) if remapped else None,
            compute_mode=COMPUTE_MODES[mode] if mode is not None and mode < len(COMPUTE_MODES) else None,
            persistence=bool(persistence) if persistence is not None else None,
            mig=bool(mig[0]) if mig else None,
            instances=tuple(self._instances(device)) if mig and mig[0] else (),
            processes=self._processes(device),
        )

    def _instances(self, device: Any) -> Iterator[MigInstance]:
        c = self._c
        for index in range(self._number("nvmlDeviceGetMaxMigDeviceCount", device) or 0):
            part = c.c_void_p()
            if self._call("nvmlDeviceGetMigDeviceHandleByIndex", device, c.c_uint(index), c.byref(part)) != 0:
                continue  # this slot has no instance
            if (uuid := self._text("nvmlDeviceGetUUID", part)) is not None:
                yield MigInstance(
                    uuid,
                    self._text("nvmlDeviceGetName", part),
                    *self._memory(part),
                    self._number("nvmlDeviceGetGpuInstanceId", part),
                    self._number("nvmlDeviceGetComputeInstanceId", part),
                )

    def _processes(self, device: Any) -> tuple[GpuProcess, ...] | None:
        computing = self._list_processes("nvmlDeviceGetComputeRunningProcesses", device)
        drawing = self._list_processes("nvmlDeviceGetGraphicsRunningProcesses", device)
        if computing is None and drawing is None:
            return None
        found = {(each.pid, each.gpu_instance, each.compute_instance): each for each in computing or ()}
        for each in drawing or ():
            found[each.pid, each.gpu_instance, each.compute_instance] = GpuProcess(each.pid, each.memory, draws=True)
        return tuple(found.values())

    def _list_processes(self, name: str, device: Any) -> list[GpuProcess] | None:
        """Return the processes in one of NVML's lists, or None if the library has no such list.

        A list may have any length. So it is read again with a larger buffer until the buffer suffices.
        """
        c = self._c

        class Process(c.Structure):  # type: ignore[name-defined,misc] # as _v2 and _v3 have it
            _fields_ = (("pid", c.c_uint), ("memory", c.c_ulonglong), ("gi", c.c_uint), ("ci", c.c_uint))

        for version in ("_v3", "_v2"):
            if not hasattr(self._library, f"{name}{version}"):
                continue
            length = 64
            while length <= MOST_PROCESSES:
                count, room = c.c_uint(length), (Process * length)()  # type: ignore[operator]
                code = self._call(f"{name}{version}", device, c.byref(count), room)
                if code == 0:
                    return [_process(each) for each in room[: count.value]]
                if code != INSUFFICIENT_SIZE:
                    return None
                length *= 4
        return None

    def _bus_id(self, device: Any) -> str | None:
        c = self._c

        class Pci(c.Structure):  # type: ignore[name-defined,misc]
            _fields_ = (
                ("legacy", c.c_char * 16), ("domain", c.c_uint), ("bus", c.c_uint), ("device", c.c_uint),
                ("ids", c.c_uint), ("subsystem", c.c_uint), ("bus_id", c.c_char * 32),
            )  # fmt: skip

        found = Pci()
        if self._call("nvmlDeviceGetPciInfo_v3", device, c.byref(found)) != 0:
            return None
        return str(found.bus_id.decode("ascii", "replace"))

    def _memory(self, device: Any) -> tuple[int | None, int | None]:
        """Return the device's total memory and its used memory, in bytes. Return None for both if they are unknown."""
        found = (self._c.c_ulonglong * 3)()
        return (found[0], found[2]) if self._call("nvmlDeviceGetMemoryInfo", device, found) == 0 else (None, None)

    def _errors(self, device: Any, counter: int) -> int | None:
        c, found = self._c, self._c.c_ulonglong()
        arguments = (c.c_int(UNCORRECTED), c.c_int(counter), c.byref(found))
        return int(found.value) if self._call("nvmlDeviceGetTotalEccErrors", device, *arguments) == 0 else None

    def _throttles(self, device: Any) -> tuple[str, ...] | None:
        found = self._c.c_ulonglong()
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            if self._call(name, device, self._c.byref(found)) == 0:
                return tuple(word for bit, word in THROTTLES.items() if found.value & bit)
        return None

    def _text(self, name: str, *before: Any) -> str | None:
        room = self._c.create_string_buffer(TEXT_BYTES)
        code = self._call(name, *before, room, self._c.c_uint(TEXT_BYTES))
        return str(room.value.decode("utf-8", "replace")) if code == 0 else None

    def _number(self, name: str, *before: Any) -> int | None:
        found = self._numbers(name, *before, count=1)
        return found[0] if found else None

    def _numbers(self, name: str, *before: Any, count: int, packed: bool = False) -> list[int] | None:
        """Return the unsigned numbers that one of NVML's functions writes, or None if the call fails.

        With `packed`, the function writes all numbers into one structure. Otherwise it has one argument for each
        number.
        """
        room = (self._c.c_uint * count)()
        size = self._c.sizeof(self._c.c_uint)
        places = [room] if packed else [self._c.byref(room, size * each) for each in range(count)]
        return list(room) if self._call(name, *before, *places) == 0 else None

    def _call(self, name: str, *arguments: Any) -> int:
        """Call one of NVML's functions and return its code, or UNINITIALIZED if the library lacks the function."""
        function = getattr(self._library, name, None)
        return UNINITIALIZED if function is None else int(function(*arguments))


def _process(found: Any) -> GpuProcess:
    gi, ci = (None if number == NO_INSTANCE else int(number) for number in (found.gi, found.ci))
    memory = None if found.memory == NOT_AVAILABLE else int(found.memory)
    return GpuProcess(int(found.pid), memory, gpu_instance=gi, compute_instance=ci)

"""Which GPUs a machine has as places for ranks, by the library, the kernel's driver or the device files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.node.system.gpus import devices
from orchestrator.node.system.gpus.inventory import Gpu, GpuInventory, GpuProcess, MigInstance
from orchestrator.protocol.places.devices import Device

ME = os.getpid()
CARDS = GpuInventory(
    (Gpu(0, "GPU-a"), Gpu(1, "GPU-b", mig=True, instances=(MigInstance("MIG-1"), MigInstance("MIG-2"))))
)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine of which nothing tells anything."""
    devices.machine_devices.cache_clear()
    monkeypatch.setattr(devices, "look", GpuInventory)
    monkeypatch.setattr(devices, "BY_DRIVER", str(tmp_path / "driver"))
    monkeypatch.setattr(devices, "DEV", str(tmp_path / "dev"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def names() -> list[str]:
    found = [each.name for each in devices.machine_devices()]
    devices.machine_devices.cache_clear()
    return found


def test_a_card_that_mig_has_divided_is_its_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "look", lambda: CARDS)
    assert names() == ["GPU-a", "MIG-1", "MIG-2"]
    assert devices.devices_of(CARDS)[2] == Device("MIG-2", 1, "GPU-b")


def test_cards_that_this_process_may_not_open_are_left_out_and_not_numbered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cards = GpuInventory(tuple(Gpu(index, f"GPU-{index}", minor=3 - index) for index in range(4)))
    monkeypatch.setattr(devices, "look", lambda: cards)
    assert names() == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]  # WSL2 has no device file of a card
    (tmp_path / "dev").mkdir()
    for minor in (0, 2, 3):
        (tmp_path / "dev" / f"nvidia{minor}").touch()
    assert devices.devices_of(cards) == [
        Device(f"GPU-{index}", place, f"GPU-{index}") for place, index in enumerate((0, 1, 3))
    ]
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not path.endswith("nvidia3") and allowed(path, mode))
    assert devices.devices_of(cards) == [Device("GPU-1", 0, "GPU-1"), Device("GPU-3", 1, "GPU-3")]
    for index, bus in enumerate(("01", "02", "03")):
        folder = tmp_path / "driver" / f"0000:{bus}:00.0"
        folder.mkdir(parents=True)
        said = f"GPU UUID: \t GPU-{index}\nDevice Minor: \t {3 - index}\n"
        (folder / "information").write_text(said)
    monkeypatch.setattr(devices, "look", GpuInventory)
    assert devices.machine_devices() == (Device("GPU-1", 0, "GPU-1"),)
    (tmp_path / "driver").rename(tmp_path / "gone")
    devices.machine_devices.cache_clear()
    assert devices.machine_devices() == (Device("gpu-0", 0, "gpu-0"), Device("gpu-1", 1, "gpu-1"))


def test_a_child_process_looks_so_that_this_one_opens_no_card(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    me, looked = os.getpid(), []

    def look() -> GpuInventory:
        looked.append(os.getpid())
        return CARDS

    def fails() -> GpuInventory:
        raise ZeroDivisionError

    monkeypatch.setattr(devices, "look", look)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-z")
    assert devices.devices_apart() == tuple(devices.devices_of(CARDS))
    monkeypatch.setattr(devices, "look", GpuInventory)
    assert devices.devices_apart() == ()  # the variable says which cards to see, not which there are
    monkeypatch.setattr(devices, "look", fails)
    assert devices.devices_apart() == ()
    assert "ZeroDivisionError" in capfd.readouterr().err
    assert me not in looked


def test_without_the_library_the_driver_then_the_device_files_then_the_shell_tell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert names() == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,MIG-7")
    assert names() == ["gpu-2", "MIG-7"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "dxg").touch()  # WSL2
    assert names() == ["gpu-0"]
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    assert names() == ["gpu-0", "gpu-1"]
    for bus, uuid in (("0000:41:00.0", "GPU-????????"), ("0000:01:00.0", "GPU-5e2c1234-77")):
        folder = tmp_path / "driver" / bus
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t H200\nGPU UUID: \t {uuid}\nBus Type: \t PCIe\n")
    assert names() == ["GPU-5e2c1234-77", "gpu-1"]


@pytest.mark.parametrize(
    ("gpu", "used"),
    [
        (Gpu(0, "GPU-a", processes=(), memory_used=1 << 29), []),
        (Gpu(0, "GPU-a", processes=(GpuProcess(ME),)), ["GPU-a"]),
        (Gpu(0, "GPU-a", processes=(GpuProcess(ME, draws=True),), memory_used=3 << 30), []),  # a desktop
        (Gpu(0, "GPU-a", processes=(), memory_used=3 << 30), ["GPU-a"]),  # in a container nobody's pid is seen
        (Gpu(0, "GPU-a", processes=None, memory_used=3 << 30), ["GPU-a"]),
        (
            Gpu(0, "GPU-b", mig=True, processes=(GpuProcess(ME, None, False, 2, 0),),
                instances=(MigInstance("MIG-1", gpu_instance=1, compute_instance=0),
                           MigInstance("MIG-2", gpu_instance=2, compute_instance=0))),
            ["MIG-2"],
        ),
    ],
)  # fmt: skip
def test_what_programs_of_no_run_use_is_told(monkeypatch: pytest.MonkeyPatch, gpu: Gpu, used: list[str]) -> None:
    monkeypatch.setattr(devices, "look", lambda: GpuInventory((gpu,)))
    found = devices.used_by_others()
    assert list(found) == used
    for holder in found.values():
        if gpu.processes:
            assert (holder["uid"], holder["run"]) == (os.getuid(), None)
            assert holder["program"].endswith(f", pid {ME}")
        else:
            assert "(3072 MiB)" in holder["program"]

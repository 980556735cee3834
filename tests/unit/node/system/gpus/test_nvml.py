"""GPUs by NVIDIA's management library, which is a compiled one that tells what a file says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.system.gpus.nvidia_smi import read_answers
from tests import nvml

LOOK = """
import dataclasses, json
from orchestrator.node.system.gpus.nvml import look
print(json.dumps(dataclasses.asdict(look())))
"""


def look(environment: dict[str, str]) -> dict[str, Any]:
    """Return what a process of its own finds: a library stays loaded."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("count", [1, 2, 8])
def test_each_card_is_told_in_the_order_of_the_bus(tmp_path: Path, count: int) -> None:
    found = look(nvml.describe(tmp_path / "state", *map(nvml.card, range(count))).environment)
    assert found["driver"] == "580.65.06"
    assert found["cuda"] == [13, 0]
    assert [gpu["uuid"] for gpu in found["gpus"]] == [nvml.uuid(number) for number in range(count)]
    last = found["gpus"][-1]
    assert last == {
        "index": count - 1, "uuid": nvml.uuid(count - 1), "name": "NVIDIA H200",
        "bus_id": f"00000000:{count + 15:02X}:00.0", "minor": None, "memory_total": 139 << 30, "memory_used": 1 << 29,
        "utilization": 0, "power": 76.0, "power_limit": 700.0, "temperature": 31, "sm_clock": 345,
        "throttle_reasons": [], "ecc_volatile": 0, "ecc_aggregate": 0, "pending_retirement": False,
        "remap_failed": False, "compute_mode": "default", "persistence": True, "mig": False, "instances": [],
        "processes": [],
    }  # fmt: skip


def test_errors_throttling_and_processes_are_told(tmp_path: Path) -> None:
    sick = nvml.card(
        0, "volatile 3", "aggregate 7", "remap 0 1 1 1", "throttle 0x44", "mode 3", "process 4711 1024", "draws 12"
    )
    many = nvml.card(1, *(f"process {pid} 1" for pid in range(1, 201)))
    first, second = look(nvml.describe(tmp_path / "state", sick, many).environment)["gpus"]
    assert [first[name] for name in ("ecc_volatile", "ecc_aggregate", "pending_retirement", "remap_failed")] == [
        3,
        7,
        True,
        True,
    ]
    assert first["throttle_reasons"] == ["power cap", "hardware thermal"]
    assert first["compute_mode"] == "exclusive-process"
    assert [(each["pid"], each["memory"], each["draws"]) for each in first["processes"]] == [
        (4711, 1024, False),
        (12, None, True),
    ]
    assert [each["pid"] for each in second["processes"]] == list(range(1, 201))


def test_instances_of_mig_are_told_with_their_memory(tmp_path: Path) -> None:
    parts = [
        line
        for part in (1, 2)
        for line in (
            f"instance {nvml.mig_uuid(0, part)} {part} 0",
            "name NVIDIA H200 MIG 1g.18gb",
            f"memory {16 << 30} 0",
        )
    ]
    (gpu,) = look(nvml.describe(tmp_path / "state", nvml.card(0, "mig 1", *parts)).environment)["gpus"]
    assert gpu["mig"]
    assert [each["uuid"] for each in gpu["instances"]] == [nvml.mig_uuid(0, 1), nvml.mig_uuid(0, 2)]
    assert gpu["instances"][1]["memory_total"] == 16 << 30
    assert gpu["instances"][1]["gpu_instance"] == 2


def test_what_nobody_tells_is_none_and_a_card_that_may_not_be_used_is_left_out(tmp_path: Path) -> None:
    stub = nvml.describe(tmp_path / "state", f"gpu {nvml.uuid(5)}\n", nvml.card(1, "hidden"), nvml.card(2), head="")
    found = look(stub.environment)
    assert (found["driver"], found["cuda"]) == (None, None)
    bare, whole = found["gpus"]
    assert {name for name, value in bare.items() if value is not None} == {"index", "uuid", "instances", "processes"}
    assert (whole["index"], whole["uuid"]) == (2, nvml.uuid(2))
    old = look({**stub.environment, "LD_LIBRARY_PATH": nvml.library_folder(old=True)})["gpus"][1]
    assert [old[name] for name in ("mig", "remap_failed", "processes")] == [None] * 3
    assert old["memory_total"] == 139 << 30


def test_without_a_driver_there_are_no_gpus(tmp_path: Path) -> None:
    empty = {"gpus": [], "driver": None, "cuda": None}
    assert look({"LD_LIBRARY_PATH": nvml.library_folder(), "NVML_STUB": str(tmp_path / "none")}) == empty
    assert look({"LD_LIBRARY_PATH": str(tmp_path)}) == empty


XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
 <driver_version>580.65.06</driver_version><cuda_version>13.0</cuda_version><attached_gpus>1</attached_gpus>
 <gpu id="00000000:1B:00.0">
  <product_name>NVIDIA A100-SXM4-80GB</product_name><uuid>GPU-5e2c</uuid>
  <persistence_mode>Enabled</persistence_mode><compute_mode>Exclusive_Process</compute_mode>
  <mig_mode><current_mig>Enabled</current_mig><pending_mig>Enabled</pending_mig></mig_mode>
  <fb_memory_usage><total>81920 MiB</total><reserved>600 MiB</reserved><used>44 MiB</used></fb_memory_usage>
  <utilization><gpu_util>N/A</gpu_util></utilization>
  <ecc_errors>
   <volatile><sram_correctable>9</sram_correctable><sram_uncorrectable_parity>1</sram_uncorrectable_parity>
    <sram_uncorrectable_secded>0</sram_uncorrectable_secded><dram_uncorrectable>2</dram_uncorrectable></volatile>
   <aggregate><sram_uncorrectable>4</sram_uncorrectable><dram_uncorrectable>N/A</dram_uncorrectable></aggregate>
  </ecc_errors>
  <retired_pages><pending_retirement>N/A</pending_retirement></retired_pages>
  <remapped_rows><remapped_row_pending>Yes</remapped_row_pending>
   <remapped_row_failure>No</remapped_row_failure></remapped_rows>
  <temperature><gpu_temp>34 C</gpu_temp></temperature>
  <gpu_power_readings><power_draw>61.53 W</power_draw>
   <current_power_limit>400.00 W</current_power_limit></gpu_power_readings>
  <clocks><sm_clock>1410 MHz</sm_clock></clocks>
  <clocks_event_reasons><clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
   <clocks_event_reason_hw_thermal_slowdown>Active</clocks_event_reason_hw_thermal_slowdown></clocks_event_reasons>
  <processes><process_info><gpu_instance_id>1</gpu_instance_id><compute_instance_id>0</compute_instance_id>
   <pid>77</pid><type>C</type><used_memory>1024 MiB</used_memory></process_info></processes>
 </gpu>
</nvidia_smi_log>"""
LISTED = """GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5e2c)
  MIG 1g.10gb     Device  0: (UUID: MIG-aaaa)
  MIG 2g.20gb     Device  1: (UUID: MIG-bbbb)
"""


def test_the_programs_answer_says_the_same() -> None:
    found = read_answers(XML, LISTED)
    (gpu,) = found.gpus
    assert (found.driver, found.cuda) == ("580.65.06", (13, 0))
    assert (gpu.uuid, gpu.bus_id, gpu.memory_total, gpu.utilization) == ("GPU-5e2c", "00000000:1B:00.0", 80 << 30, None)
    assert (gpu.ecc_volatile, gpu.ecc_aggregate, gpu.pending_retirement, gpu.remap_failed) == (3, 4, True, False)
    assert (gpu.power, gpu.power_limit, gpu.temperature, gpu.sm_clock) == (61.53, 400.0, 34, 1410)
    assert (gpu.throttle_reasons, gpu.compute_mode, gpu.persistence) == (
        ("hardware thermal",),
        "exclusive-process",
        True,
    )
    assert [(each.uuid, each.name) for each in gpu.instances] == [
        ("MIG-aaaa", "MIG 1g.10gb"),
        ("MIG-bbbb", "MIG 2g.20gb"),
    ]
    assert [(each.pid, each.memory, each.gpu_instance) for each in gpu.processes or ()] == [(77, 1 << 30, 1)]


@pytest.mark.parametrize("said", ["", "No devices were found\n", "<a>", "<nvidia_smi_log/>"])
def test_an_answer_that_is_none_is_no_gpu(said: str) -> None:
    assert read_answers(said).gpus == ()


def test_where_the_library_is_missing_the_program_is_asked(tmp_path: Path) -> None:
    (tmp_path / "q.xml").write_text(XML)
    (tmp_path / "l.txt").write_text(LISTED)
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncase $1 in -L) cat {tmp_path}/l.txt;; *) cat {tmp_path}/q.xml;; esac\n")
    program.chmod(0o755)
    (gpu,) = look({"PATH": f"{tmp_path}:{os.environ['PATH']}"})["gpus"]
    assert (gpu["uuid"], len(gpu["instances"])) == ("GPU-5e2c", 2)

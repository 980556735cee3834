"""What is said of GPUs that are broken, worn, too hot, in use, or badly joined."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator.backends.base import CheckResult, Level
from orchestrator.backends.gpu_checks import Rows, ask, check_nvml, compare, rows_of
from orchestrator.errors import BackendError
from orchestrator.node.system.gpus.inventory import Gpu, MigInstance
from orchestrator.protocol.task import NodeTask, Program
from tests.machines import FakeMachine

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL
TOPOLOGY = """\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity
GPU0\t X \tNV18\tSYS\tPIX\t0-31
GPU1\tNV18\t X \tSYS\tSYS\t0-31
GPU2\tSYS\tSYS\t X \tSYS\t0-31
NIC0\tPIX\tSYS\tSYS\t X
"""


def copied(one: int, other: int, *, direct: bool, said: str = "") -> dict[str, Any]:
    return {"one": one, "other": other, "direct": direct, "said": said}


TRIED = {
    "torch": "2.10",
    "cuda": "13.0",
    "nccl": "2.28.9",
    "gpus": ["", ""],
    "copies": [copied(0, 1, direct=True), copied(1, 0, direct=False)],
}
HOT = ("power cap", "hardware thermal")
DIVIDED = {"mig": True, "instances": (MigInstance("MIG-1"),)}


def rows(*changed: dict[str, Any], tried: Any = TRIED, **said: Any) -> Rows:
    """Return the rows of a machine with two healthy H200 but for what is changed."""
    usual = {"name": "NVIDIA H200", "ecc_volatile": 0, "ecc_aggregate": 0, "throttle_reasons": (), "mig": False}
    differ = [*changed, *[{}] * (2 - len(changed))]
    gpus = [dataclasses.asdict(Gpu(number, f"GPU-{number}", **{**usual, **each})) for number, each in enumerate(differ)]
    whole = {"gpus": gpus, "driver": "580.65", "cuda": [13, 0], "used": {}, "topology": TOPOLOGY, "hcas": [],
             "memlock": None, "removes_ipc": False}  # fmt: skip
    return rows_of({**whole, **said}, tried)


def test_a_machine_whose_nvml_cannot_start_says_why() -> None:
    said = {"gpus": [], "nvml_problem": "Driver/library version mismatch"}
    (row,) = ask(FakeMachine("n1", answers={"examine_gpus": said}), None, ()).items()
    assert row[0] == "driver"
    assert (row[1].level, row[1].value) == (FAIL, "NVML can't be initialized: Driver/library version mismatch")


def test_a_machine_with_gpus_on_which_nvml_cannot_be_initialized_is_refused() -> None:
    task = NodeTask("r-1", 0, 1, ("a",), 1, "/r", "/c", Program("module", "x"), "auto", "auto", "python", (), (1, 2))
    cards = [{"name": f"GPU-{each}", "number": each, "card": f"GPU-{each}"} for each in range(2)]
    broken = {"devices": cards, "visible": None, "nvml_problem": "Driver/library version mismatch"}
    with pytest.raises(BackendError, match="n1: it has 2 GPUs, but NVML can't be initialized: Driver/lib") as refused:
        check_nvml(task, "n1", broken)
    assert "reboot that machine" in refused.value.hint
    for on_cpus in ({"uses_gpus": False}, {"env": {"CUDA_VISIBLE_DEVICES": ""}}):
        check_nvml(dataclasses.replace(task, **on_cpus), "n1", broken)
    check_nvml(task, "n1", {**broken, "devices": []})
    check_nvml(task, "n1", {**broken, "nvml_problem": ""})


def test_a_machine_in_good_order() -> None:
    found = rows(hcas=[{"hca": "mlx5_0", "port": "1", "state": "ACTIVE", "rate": "400 Gb/sec (4X NDR)"}])
    assert {what: row.value for what, row in found.items()} == {
        "gpus": "2 NVIDIA H200",
        "driver": "580.65, which supports torch's CUDA 13.0",
        "cuda": "a CUDA kernel ran on 2 of 2 GPUs",
        "gpu health": "no errors",
        "gpu use": "no program uses the GPUs",
        "topology": "2 pairs SYS, 1 pairs NV18; 1 of 2 neighbours copy directly",
        "nccl": "2.28.9",
        "infiniband": "1 of 1 ports active, 400 Gb/sec (4X NDR)",
        "ipc": "shared memory is kept when sessions end",
    }
    assert {row.level for row in found.values()} == {OK}


@pytest.mark.parametrize(
    ("what", "level", "value", "values"),
    [
        ("gpus", FAIL, "there is no instance on GPU 0", {"changed": {"mig": True}}),
        ("gpus", OK, "2 NVIDIA H200; 1 instances of MIG", {"changed": DIVIDED}),
        ("gpus", FAIL, "GPU 0 does not allow computing", {"changed": {"compute_mode": "prohibited"}}),
        ("driver", FAIL, "driver 580.65 supports CUDA 12.8, but torch needs 13.0", {"cuda": [12, 8]}),
        ("cuda", FAIL, "torch 2.10+cpu is a build for CPUs only", {"tried": {"torch": "2.10+cpu", "cuda": None}}),
        ("cuda", FAIL, "its python fails", {"tried": "its python fails"}),
        ("cuda", FAIL, "GPU 1: CUDA error: system not yet initialized", {
            "tried": {**TRIED, "gpus": ["", "CUDA error: system not yet initialized"]}}),
        ("cuda", FAIL, "torch sees 1 of 2 GPUs", {"tried": {**TRIED, "gpus": [""]}}),
        ("gpu health", FAIL, "GPU 0: 3 uncorrectable errors", {"changed": {"ecc_volatile": 3}}),
        ("gpu health", FAIL, "GPU 0 has no spare rows left", {"changed": {"remap_failed": True}}),
        ("gpu health", WARN, "GPU 0 has faulty memory that its next reset takes out of use",
         {"changed": {"pending_retirement": True}}),
        ("gpu health", WARN, "GPU 0: hardware thermal", {"changed": {"throttle_reasons": HOT}}),
        ("gpu health", OK, "no errors now, 7 uncorrectable errors since the GPUs were made",
         {"changed": {"ecc_aggregate": 7}}),
        ("gpu use", WARN, "GPU 1: python, pid 7, of carol", {
            "used": {"GPU-1": {"uid": 7, "user": "carol", "run": None, "since": None, "program": "python, pid 7"}}}),
        ("topology", FAIL, "GPU 0 to 1: what arrives is not what was sent", {
            "tried": {**TRIED, "copies": [copied(0, 1, direct=True, said="what arrives is not what was sent")]}}),
        ("infiniband", FAIL, "1 of 1 ports active, 1 Gb; only 8.0 MiB of memory may be locked", {
            "hcas": [{"state": "ACTIVE", "rate": "1 Gb"}], "memlock": 8 << 20}),
        ("infiniband", WARN, "0 of 1 ports active", {"hcas": [{"state": "DOWN", "rate": "1 Gb"}]}),
        ("ipc", WARN, "logind removes NCCL's shared memory", {"removes_ipc": True}),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_a_remedy(what: str, level: Level, value: str, values: dict[str, Any]) -> None:
    row = rows(values.pop("changed", {}), **values)[what]
    assert row.level == level
    assert value in row.value
    assert bool(row.hint) == (level != OK)


def test_versions_that_differ_between_nodes_are_told() -> None:
    usual = {"nccl": CheckResult(OK, "2.28.9"), "driver": CheckResult(OK, "580.65")}
    nodes = {0: dict(usual), 1: dict(usual), 2: {"nccl": CheckResult(OK, "2.27.3"), "driver": CheckResult(OK, "570.1")}}
    compare(nodes)
    assert nodes[0] == usual
    assert (nodes[2]["nccl"].level, nodes[2]["driver"].level) == (FAIL, WARN)
    assert nodes[2]["nccl"].hint.startswith("most hosts have 2.28.9, and if versions differ, ranks can't join")
    compare({})

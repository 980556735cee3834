"""What an engine says, in words; what a node gives a container; and whose containers are looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.node.container import engine, prepare
from orchestrator.node.container.argv import NodeResources, argv, task_inside
from orchestrator.node.container.engine import Engine, EngineError, can_lift_limits, end_containers, in_words, recorded
from orchestrator.node.container.prepare import (
    OWN_CODES,
    ended_with,
    node_resources,
    ready,
    refusal,
    visible_gpus,
)
from orchestrator.node.system.gpus.inventory import Gpu, GpuInventory, MigInstance
from orchestrator.protocol.hostlist import ranges
from orchestrator.protocol.places.devices import Device
from orchestrator.protocol.task import Container, Mount, NodeTask, Program
from tests.patience import PATIENCE

BOX = Container("docker", "lab/train:1")
TASK = NodeTask("r-1", 0, 1, ("n1",), 1, "/run", "/code", Program("script", "t.py"), "auto", "auto", "python3",
                ("10.0.0.1",), (20000,), container=BOX)  # fmt: skip


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
            "its docker daemon does not answer: start it there",
        ),
        (
            "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
            "may not use its docker daemon: add",
        ),
        (
            "failed to register layer: Error processing tar file(exit status 1): write /x: no space left on device",
            "its disk is full, as docker reports: make room where its images are stored",
        ),
        (
            "exec /usr/bin/python3: exec format error",
            "the image is for another kind of processor than this machine's",
        ),
        (
            'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
            "its docker can't give GPUs to a container",
        ),
        (
            'runc create failed: unable to start: exec: "python9": executable file not found in $PATH',
            "the image has no such interpreter",
        ),
        (
            "docker: Error response from daemon: something new.\nSee 'docker run --help'.",
            "docker reports: docker: Error response from daemon: something new.",
        ),
        ("", "docker reports: it printed nothing"),
    ],
)
def test_what_an_engine_says_becomes_one_sentence(said: str, words: str) -> None:
    assert words in in_words(said, "docker")
    assert "\n" not in in_words(said, "docker")


@pytest.mark.parametrize("code", OWN_CODES)
def test_the_engines_own_codes_are_not_taken_for_the_programs(code: int) -> None:
    assert "its container of lab/train:1 could not be started: docker reports: no" in (
        refusal(TASK, code, ["no"]) or ""
    )
    assert refusal(TASK, 1, ["no"]) is None
    assert refusal(NodeTask(**{**TASK.__dict__, "container": None}), code, ["no"]) is None


@pytest.mark.parametrize(
    ("environ", "env", "gpus"),
    [
        ({"SLURM_STEP_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "0,1"}, {}, ("2", "3")),  # the machine's own numbers
        ({"SLURM_JOB_GPUS": "4-6"}, {}, ("4", "5", "6")),
        ({}, {"CUDA_VISIBLE_DEVICES": "1"}, ("1",)),
        ({"SLURM_STEP_GPUS": "0", "CUDA_VISIBLE_DEVICES": "MIG-a"}, {}, ("MIG-a",)),  # and not the whole card
        ({"SLURM_STEP_GPUS": "0,1"}, {"CUDA_VISIBLE_DEVICES": "GPU-b"}, ("GPU-b",)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, {}, ("GPU-a", "GPU-b")),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, {}, ()),
        ({"CUDA_VISIBLE_DEVICES": ""}, {}, ()),
    ],
)
def test_only_the_gpus_of_the_allocation_or_the_lease_are_given(
    environ: dict[str, str], env: dict[str, str], gpus: tuple[str, ...]
) -> None:
    assert visible_gpus(NodeTask(**{**TASK.__dict__, "env": env}), environ) == gpus


@pytest.mark.parametrize("names", [("GPU-b", "GPU-a"), ("MIG-a",)])
def test_what_the_run_has_reserved_is_given_whatever_the_variables_say(names: tuple[str, ...]) -> None:
    variables = {"SLURM_STEP_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "0,1"}
    held = replace(TASK, reserved=names, env={"CUDA_VISIBLE_DEVICES": "GPU-z"})
    assert visible_gpus(held, variables) == names
    assert task_inside(held, NodeResources(gpus=names), variables, 4).reserved == names
    unnamed = replace(TASK, reserved=("gpu-2", "gpu-3"))  # the container numbers them anew
    inside = task_inside(unnamed, NodeResources(gpus=visible_gpus(unnamed, {})), {}, 4)
    assert (inside.reserved, inside.env["CUDA_VISIBLE_DEVICES"]) == ((), "0,1")


def test_ranks_that_train_on_the_cpu_are_given_no_gpu() -> None:
    assert visible_gpus(NodeTask(**{**TASK.__dict__, "uses_gpus": False}), {"SLURM_STEP_GPUS": "0"}) == ()


def test_without_a_word_of_anybody_all_cards_are_given_by_their_uuids(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = (Device("GPU-a", 0, "GPU-a"), Device("MIG-b", 1, "GPU-c"))
    monkeypatch.setattr(prepare, "machine_devices", lambda: cards)
    listed = GpuInventory((Gpu(2, "GPU-a"), Gpu(3, "GPU-c", mig=True, instances=(MigInstance("MIG-b"),))))
    monkeypatch.setattr(prepare, "look", lambda: listed)
    assert visible_gpus(TASK, {}) == ("GPU-a", "MIG-b")
    box = replace(TASK.container, gpu_flag="cdi") if TASK.container else None
    by_cdi = node_resources(replace(TASK, container=box), Engine("podman", "5"), {})
    # A toolkit may know cards by number alone, and numbers those that this process may not open too.
    assert by_cdi.gpus == ("2", "MIG-b")
    monkeypatch.setattr(prepare, "machine_devices", tuple)
    assert visible_gpus(TASK, {}) == ()


def test_a_runtime_that_empties_the_environment_is_told_the_jobs_gpus() -> None:
    site = {"CUDA_VISIBLE_DEVICES": "2,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "TORCH_NCCL_TRACE": "1",
            "CUDA_HOME": "/c", "PYTORCH_CUDA_ALLOC_CONF": "a", "MLX5_SINGLE_THREADED": "1"}  # fmt: skip
    box = replace(TASK.container, runtime="apptainer") if TASK.container else None
    env = task_inside(replace(TASK, container=box), NodeResources(), site, 4).env
    assert {name: env.get(name) for name in site} == {**site, "CUDA_HOME": None}
    own = replace(TASK, container=box, env={"CUDA_VISIBLE_DEVICES": "GPU-a"})
    assert task_inside(own, NodeResources(), site, 4).env["CUDA_VISIBLE_DEVICES"] == "GPU-a"  # the lease's word
    by_engine = task_inside(TASK, NodeResources(gpus=("2", "3")), site, 4).env
    assert by_engine["CUDA_VISIBLE_DEVICES"] == "0,1"  # it sees no others


def test_what_a_fast_network_needs_is_taken_along_where_the_node_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own, missing = tmp_path / "nccl.conf", str(tmp_path / "none")
    own.touch()
    monkeypatch.setattr(prepare, "FAST_DEVICES", (str(own), missing))
    monkeypatch.setattr(prepare, "SITE_FILES", (str(own), missing))
    found = node_resources(TASK, Engine("docker", "27"), {})
    assert (found.devices, found.files) == ((str(own),), (str(own),))
    words = argv(TASK, found, 0, "image", cidfile="/id")
    assert words[words.index(str(own)) - 1] == "--device"
    assert f"type=bind,source={own},target={own},readonly" in words


def test_slurms_cores_and_memory_become_the_containers() -> None:
    own = len(os.sched_getaffinity(0))
    slurm = {"SLURM_CPUS_ON_NODE": "1", "SLURM_MEM_PER_NODE": "2048", "SLURMD_NODENAME": "n7"}
    given = node_resources(TASK, engine.Engine("docker", "1"), slurm)
    assert (given.cpus, given.memory, given.host) == (1 if own > 1 else None, 2 << 30, "n7")
    by_core = node_resources(
        TASK, engine.Engine("docker", "1"), {"SLURM_CPUS_ON_NODE": "2", "SLURM_MEM_PER_CPU": "512"}
    )
    assert by_core.memory == 1 << 30
    asked = NodeTask(**{**TASK.__dict__, "container": Container("docker", "i", mem=5)})
    assert node_resources(asked, engine.Engine("docker", "1"), {}).memory == 5


@pytest.mark.parametrize(("cores", "text"), [({0}, "0"), ({0, 1, 2, 8}, "0-2,8"), ({3, 5, 6}, "3,5-6"), (set(), "")])
def test_cores_are_written_as_cpusets(cores: set[int], text: str) -> None:
    assert ",".join(ranges([str(core) for core in sorted(cores)])) == text


@pytest.mark.parametrize(("code", "meant"), [(137, -9), (143, -15), (1, 1), (0, 0), (128, 128), (255, 255), (-9, -9)])
def test_a_launcher_that_a_signal_ended_in_its_container_is_known_as_such(code: int, meant: int) -> None:
    assert ended_with(TASK, code) == meant
    assert ended_with(NodeTask(**{**TASK.__dict__, "container": None}), code) == code


def test_a_missing_mount_is_named_before_the_engine_is_asked(tmp_path: Path) -> None:
    box = Container("docker", "i", mounts=(Mount(str(tmp_path / "gone"), "/data"),))
    with pytest.raises(EngineError, match=r"the host has no .*gone, which the job mounts as /data"):
        ready(box)


def test_a_runtime_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for runtime in ("docker", "podman", "apptainer"):
        with pytest.raises(EngineError, match=f"the host has no {runtime}: install it there"):
            ready(Container(runtime, "i"))


def test_engines_that_no_agent_has_used_are_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "podman"
    program.write_text(f"#!/bin/sh\necho asked >>{tmp_path}/said\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    node = tmp_path / "node"
    node.mkdir()
    assert end_containers("r-1", [str(node)]) == (0, [])
    assert not (tmp_path / "said").exists()
    (node / "container.json").write_text(json.dumps({"runtime": "podman"}))
    assert recorded(str(node)) == "podman"
    assert end_containers("r-1", [str(node)]) == (0, [])
    assert (tmp_path / "said").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"runtime": "rm"}'])
def test_a_damaged_record_names_no_engine(tmp_path: Path, text: str) -> None:
    (tmp_path / "container.json").write_text(text)
    assert recorded(str(tmp_path)) is None


def test_whether_limits_can_be_lifted_is_read_from_the_process() -> None:
    with open("/proc/self/status") as status:
        held = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff"))
    assert can_lift_limits(os.getpid()) == bool(held >> 24 & 1)
    assert not can_lift_limits(2**22 + 1)


def test_the_reaper_takes_nobodys_exit_status() -> None:
    """SIGCHLD of a program that is being waited for arrives at an agent, whose handler reaps every child."""
    script = (
        "import signal\nfrom orchestrator.node.system.orphans import reap_orphans, run\n"
        "signal.signal(signal.SIGCHLD, lambda *_: reap_orphans(None))\n"
        "assert [run(['sh', '-c', f'exit {code}'], 10).returncode for code in range(5)] == [0, 1, 2, 3, 4]\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
            "its docker daemon does not answer: start it there",
        ),
        (
            "Got permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
            "may not use its docker daemon: add",
        ),
    ],
)
def test_docker_20_10_reports_its_daemon_in_the_text_and_exits_with_0(
    error: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = json.dumps({"ServerErrors": [error], "ClientInfo": {"Debug": False, "Warnings": None}})
    monkeypatch.setattr(engine, "run", lambda argv, timeout: subprocess.CompletedProcess(argv, 0, text, ""))
    with pytest.raises(EngineError, match=words):
        engine.ask("docker")

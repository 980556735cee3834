"""The container that a job asks for, and the argv that enters it in every runtime, compared with tests/golden."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.container.argv import (
    NodeResources,
    argv,
    container_name,
    mounts,
    odd_image,
    start_environment,
    task_inside,
)
from orchestrator.protocol.task import Mount, NodeTask
from orchestrator.specs.border import valid
from orchestrator.specs.job import Job
from orchestrator.specs.plan import RunPaths, plan
from orchestrator.specs.profiles import AnyProfile
from orchestrator.specs.runtimes import container
from tests.profiles import valid_profile

GOLDEN = Path(__file__).parents[2] / "golden"
RUNTIMES = ["docker", "podman", "apptainer", "pyxis"]
PATHS = RunPaths(
    "/home/a/.orch/runs/r-1", "/home/a/.orch/runs/r-1/code", "/home/a/.orch/inputs", "python3", "/env/python"
)
RUN = PATHS.run_dir
OWN = {
    f"{RUN}/node.pyz": True, PATHS.code_dir: False, f"{RUN}/outputs": False, f"{RUN}/nodes/0/attempt_0": False,
    f"{RUN}/nodes/0/compiled": False, f"{RUN}/metrics.jsonl": False, os.path.dirname(RUN): False,
}  # fmt: skip
ALICE = NodeResources(user="1000:1001", name="alice", groups=(27, 44), host="n1")
IMAGE = {"image": "ghcr.io/lab/train:1", "mounts": ["/data:/data:ro", "/scratch/a b:/out"]}


def job(**values: Any) -> Job:
    return valid(Job, {"name": "j", "script": "train.py", "container": IMAGE, **values})


def profile(runtime: str, **values: Any) -> AnyProfile:
    kind = "slurm" if runtime == "pyxis" else "local"
    return valid_profile({"name": "p", "kind": kind, "runtime": runtime, **values})


def task(runtime: str = "docker", a_job: Job | None = None, **values: Any) -> NodeTask:
    return replace(plan(a_job or job(), profile(runtime), "r-1", PATHS).tasks[0], **values)


def entered(facts: NodeResources = ALICE, **values: Any) -> str:
    return shlex.join(argv(task(**values), facts, 0, "sha256:1234", cidfile="/c.id"))


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("gpus", [(), ("2", "3")], ids=["cpu", "gpus"])
def test_every_runtime_is_entered_as_committed(runtime: str, gpus: tuple[str, ...]) -> None:
    facts = replace(ALICE, gpus=gpus, cpuset="0-7", memory=1 << 30, infiniband=bool(gpus), rootless=runtime == "podman")
    words = argv(task(runtime), facts, 0, IMAGE["image"], cidfile="/home/a/.orch/runs/r-1/nodes/0/container_0.id")
    text = shlex.join(words).replace(" --", " \\\n  --") + "\n"
    path = GOLDEN / f"container_{runtime}_{'gpus' if gpus else 'cpu'}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_no_runtime_is_no_container() -> None:
    without = valid(Job, {"name": "j", "script": "train.py"})
    assert container(without, profile("none")) is None
    assert task("none", without).python == "/env/python"


def test_an_image_trains_with_its_own_python_unless_the_profile_names_one() -> None:
    assert task().python == "python3"
    named = plan(job(), profile("docker", python="/opt/conda/bin/python"), "r-1", PATHS)
    assert named.tasks[0].python == "/opt/conda/bin/python"


def test_a_task_with_a_container_crosses_machines_unchanged() -> None:
    sent = task(a_job=job(container={**IMAGE, "cap_add": ["SYS_PTRACE"]}, resources={"mem": "1G", "cpus": 2}))
    assert NodeTask.from_json(sent.to_json()) == sent
    assert sent.container is not None
    assert (sent.container.mem, sent.container.cpus, sent.container.cap_add) == (1 << 30, 2, ("SYS_PTRACE",))


def test_only_what_an_interpreter_reads_at_its_start_goes_through_argv() -> None:
    env = {"PYTHONHASHSEED": "0", "LD_PRELOAD": "/x.so", "MY_TOKEN": "canary", "LANG": "C"}
    shown = entered(env=env, secrets={"KEY": "canary"}, credentials="canary")
    assert "canary" not in shown
    assert "--env PYTHONHASHSEED=0" in shown
    inside = task_inside(task(env=env), ALICE, {"NCCL_DEBUG": "INFO", "PATH": "/host", "SLURM_JOB_ID": "7"}, 4)
    assert (inside.env["MY_TOKEN"], inside.env["NCCL_DEBUG"], inside.env["SLURM_JOB_ID"]) == ("canary", "INFO", "7")
    assert inside.env["OMP_NUM_THREADS"] == "4"
    assert not {"PATH", "LD_PRELOAD", "PYTHONPATH"} & set(inside.env)  # the image's own, or given before


def test_what_is_compiled_outlives_the_container() -> None:
    inside = task_inside(task(), ALICE, {"TORCHINDUCTOR_CACHE_DIR": "/node"}, 4).env
    caches = [inside[name] for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")]
    assert caches == [f"{RUN}/nodes/0/compiled/{name}" for name in ("inductor", "triton", "cuda")]


def test_the_jobs_own_words_win_over_the_scratch() -> None:
    env = {"HOME": "/data/home", "TORCHINDUCTOR_CACHE_DIR": "/data/cache", "OMP_NUM_THREADS": "1"}
    inside = {**task_inside(task(env=env), ALICE, {}, 4).env, **start_environment(task(env=env), ALICE)}
    assert {name: inside[name] for name in env} == env


def test_a_caller_without_a_name_in_the_image_has_one_in_the_environment() -> None:
    early = start_environment(task(), ALICE)
    assert (early["USER"], early["HOME"], early["TMPDIR"]) == ("alice", "/tmp", "/tmp")
    assert early["ORCH_MARK"] == "r-1/0"


@pytest.mark.parametrize(("gpus", "inside"), [(("2", "3"), "0,1"), (("GPU-a", "GPU-b"), "GPU-a,GPU-b")])
def test_gpus_are_counted_anew_inside(gpus: tuple[str, ...], inside: str) -> None:
    facts = replace(ALICE, gpus=gpus)
    assert task_inside(task(env={"CUDA_VISIBLE_DEVICES": "2,3"}), facts, {}, 1).env["CUDA_VISIBLE_DEVICES"] == inside
    kept = task_inside(task("apptainer", env={"CUDA_VISIBLE_DEVICES": "2,3"}), facts, {}, 1)
    assert kept.env["CUDA_VISIBLE_DEVICES"] == "2,3"  # it sees the node's own devices


def test_a_rootless_docker_maps_the_caller_to_root() -> None:
    assert "--user 0:0" in entered(replace(ALICE, rootless=True))
    assert "--user 1000:1001 --group-add 27 --group-add 44" in entered()
    assert "--user 7:7" in entered(a_job=job(container={**IMAGE, "user": "7:7"}))


def test_memory_of_its_own_and_capabilities_where_the_job_asks() -> None:
    shown = entered(a_job=job(container={**IMAGE, "shm": "2G", "cap_add": ["SYS_PTRACE"]}))
    assert f"--shm-size {2 << 30}" in shown
    assert "--ipc" not in shown
    assert "--cap-drop ALL --cap-add SYS_PTRACE" in shown
    assert "memlock" not in entered(replace(ALICE, memlock=False))


def test_a_comma_in_a_mount_is_quoted_as_docker_reads_it() -> None:
    shown = argv(task(a_job=job(container={"image": "i", "mounts": ["/a,b:/c"]})), ALICE, 0, "i", cidfile="/c")
    assert 'type=bind,"source=/a,b",target=/c' in shown


def test_folders_outside_of_the_run_are_mounted_where_they_are_needed() -> None:
    a_job = job(
        checkpoint={"dir": "/ckpt", "resume": "/old/step_5"},
        inputs=[{"name": "X", "source": "/x", "sha256": "0" * 64}],
    )
    seen = {mount.target: mount.read_only for mount in mounts(task(a_job=a_job), 0)}
    assert seen == {
        **OWN, PATHS.inputs_dir: True, "/ckpt": False, "/old/step_5": True, "/data": True, "/out": False,
    }  # fmt: skip


def test_of_the_runs_folder_a_container_sees_only_what_its_ranks_need() -> None:
    first = task(nnodes=2, second_copy=True, hosts=("n1", "n2"), resume=f"{RUN}/given")
    mine = {"/data": True, "/out": False, f"{RUN}/checkpoints": False, f"{RUN}/given": True}
    seen = {mount.target: mount.read_only for mount in mounts(first, 0)}
    assert seen == {**OWN, **mine, f"{RUN}/nodes/0/second_copy": True}
    seen = {mount.target: mount.read_only for mount in mounts(replace(first, node_rank=1), 4)}
    every = {os.path.dirname(RUN): False, f"{RUN}/node.pyz": True, PATHS.code_dir: False, f"{RUN}/outputs": False}
    assert seen == {**every, **mine, f"{RUN}/nodes/1/attempt_4": False, f"{RUN}/nodes/1/compiled": False}


def test_files_above_the_working_folder_outlive_a_container_and_hide_the_node() -> None:
    """Mounts that follow lie in the first mount, so it must come first."""
    assert mounts(task(), 0)[0] == Mount(f"{RUN}/container", os.path.dirname(RUN))


def test_containers_of_one_run_have_different_names() -> None:
    names = {container_name("r-1", node, attempt) for node in range(3) for attempt in range(3)}
    assert len(names) == 9


@pytest.mark.parametrize(
    ("images", "odd"),
    [
        ({}, None),
        ({0: "", 1: ""}, None),
        ({0: "a", 1: "a"}, None),
        ({0: "a", 1: "b"}, 1),  # node 0 counts, where neither has more
        ({0: "b", 1: "a", 2: "a"}, 0),
        ({0: "a", 1: "", 2: "c"}, 2),
    ],
)
def test_the_node_with_another_image_is_found(images: dict[int, str], odd: int | None) -> None:
    assert odd_image(images) == odd

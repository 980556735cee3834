"""The files of accelerate and deepspeed that a launch line names, and their default files."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from orchestrator.errors import OrchError, UsageError
from orchestrator.operations.submission.launch_line import Pasted, read_words
from orchestrator.operations.submission.launcher_files import LauncherFiles

FSDP = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
machine_rank: 1
num_machines: 2
num_processes: 8
fsdp_config:
  fsdp_version: 2
  fsdp_offload_params: true
  transformer_layer_cls_to_wrap: Block
"""
DEEPSPEED = """distributed_type: DEEPSPEED
num_processes: 4
deepspeed_config: {zero_stage: 3, zero3_init_flag: true, deepspeed_multinode_launcher: standard}
mixed_precision: fp16
downcast_bf16: 'no'
fp8_config: {backend: TE}
"""
FSDP_DEFAULTS = {  # as `accelerate launch` 1.15 sets them
    "FSDP_SHARDING_STRATEGY": "FULL_SHARD", "FSDP_RESHARD_AFTER_FORWARD": "true", "FSDP_FORWARD_PREFETCH": "false",
    "FSDP_MIN_NUM_PARAMS": "100000000", "FSDP_USE_ORIG_PARAMS": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
    "FSDP_SYNC_MODULE_STATES": "true", "FSDP_ACTIVATION_CHECKPOINTING": "false",
    "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": "false",
}  # fmt: skip


def pasted(line: str, folder: Path) -> Pasted:
    return read_words(shlex.split(line), LauncherFiles(folder, {"HF_HOME": str(folder / "hf")}))


def accelerated(config: str, folder: Path, options: str = "", name: str = "c.yaml") -> Pasted:
    (folder / name).write_text(config)
    return pasted(f"accelerate launch --config_file {name} {options} train.py", folder)


def test_a_config_of_fsdp(tmp_path: Path) -> None:
    found = accelerated(FSDP, tmp_path)
    assert (found.nodes, found.nproc) == (2, 4)
    assert found.env == {
        **FSDP_DEFAULTS,
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_OFFLOAD_PARAMS": "true",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": "Block",
    }
    assert found.notes == ["machine_rank of accelerate left out, because orch sets these values itself"]


def test_a_config_of_deepspeed(tmp_path: Path) -> None:
    found = accelerated(DEEPSPEED, tmp_path)
    assert (found.nodes, found.nproc) == (None, 4)
    assert found.env == {
        "ACCELERATE_MIXED_PRECISION": "fp16",
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
        "ACCELERATE_DEEPSPEED_ZERO3_INIT": "true",
        "ACCELERATE_CONFIG_DS_FIELDS": "zero_stage,zero3_init_flag,deepspeed_multinode_launcher,mixed_precision",
    }
    assert found.notes[-1] == "fp8_backend of accelerate was left out: TE"


def test_options_of_the_line_come_first(tmp_path: Path) -> None:
    found = accelerated(
        FSDP, tmp_path, "--multi_gpu --mixed_precision no --num_processes 2 --num_machines 1 --gpu_ids 2,3"
    )
    assert (found.nodes, found.nproc) == (1, 2)
    assert found.env == {"ACCELERATE_MIXED_PRECISION": "no", "CUDA_VISIBLE_DEVICES": "2,3"}
    assert "fsdp_version of accelerate was left out: 2" in found.notes
    found = pasted("accelerate launch --use_fsdp --num_processes 2 train.py", tmp_path)
    assert found.env["FSDP_VERSION"] == "1"


@pytest.mark.parametrize(
    ("config", "env", "nproc"),
    [
        ('{"distributed_type": "NO", "num_processes": 4, "mixed_precision": "bf16"}',
         {"ACCELERATE_MIXED_PRECISION": "bf16"}, 1),
        ("distributed_type: MULTI_GPU\nnum_processes: -1\nmixed_precision: no",
         {"ACCELERATE_MIXED_PRECISION": "no"}, "auto"),
        ("num_processes: 3\nuse_cpu: true\ndebug: true\ndynamo_config: {dynamo_backend: inductor, mode: default}",
         {"ACCELERATE_USE_CPU": "true", "ACCELERATE_DEBUG_MODE": "true", "ACCELERATE_DYNAMO_BACKEND": "INDUCTOR",
          "ACCELERATE_DYNAMO_MODE": "default"}, 3),
    ],
)  # fmt: skip
def test_other_configs(tmp_path: Path, config: str, env: dict[str, str], nproc: int | str) -> None:
    found = accelerated(config, tmp_path, name="c.json" if config[0] == "{" else "c.yaml")
    assert (found.env, found.nproc, found.notes) == (env, nproc, [])


def test_the_default_config_is_read_as_accelerate_does(tmp_path: Path) -> None:
    assert pasted("accelerate launch train.py", tmp_path).nproc == "auto"
    (tmp_path / "hf/accelerate").mkdir(parents=True)
    (tmp_path / "hf/accelerate/default_config.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\n")
    found = pasted("accelerate launch train.py", tmp_path)
    assert found.nproc == 2
    assert found.notes == [f"read {tmp_path}/hf/accelerate/default_config.yaml, as accelerate does"]
    found = pasted("accelerate launch --cpu train.py", tmp_path)
    assert (found.nproc, found.notes) == (1, [])


def test_accelerate_starts_one_process_on_a_cpu(tmp_path: Path) -> None:
    found = pasted("accelerate launch --cpu --num_machines 2 --num_processes 4 train.py", tmp_path)
    assert (found.nodes, found.nproc, found.env) == (None, 1, {"ACCELERATE_USE_CPU": "true"})
    assert found.notes == [
        "num_processes 4 was left out, because accelerate starts one process with --cpu; "
        "--nproc-per-node of orch starts more"
    ]
    assert accelerated("distributed_type: MULTI_GPU\nnum_processes: 2\n", tmp_path, "--cpu").nproc == 1
    assert accelerated("distributed_type: MULTI_CPU\nnum_processes: 2\n", tmp_path, "--cpu").nproc == 2
    assert pasted("accelerate launch --cpu --mpirun_hostfile h --num_processes 2 train.py", tmp_path).nproc == 2


def test_a_file_that_is_not_here_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--config_file x\.yaml: there is no such file here"):
        pasted("accelerate launch --config_file x.yaml t.py", tmp_path)
    with pytest.raises(UsageError, match="--hostfile hosts: there is no such file here"):
        pasted("deepspeed --hostfile hosts t.py", tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("distributed_type: [1\n", "c.yaml:2:1: not valid YAML"),
        ("- a\n", "c.yaml:1:1: .* is a list"),
        ("", "c.yaml:1:1: the config file is empty"),
        ("num_processes: many\n", "c.yaml: num_processes: many is not a number of at least 1"),
        ("num_machines: true\n", "c.yaml: num_machines: True is not a number"),
        ("num_machines: {a: 1}\n", "c.yaml: num_machines: .* is not a number"),
        ("fsdp_config: 3\n", "c.yaml: fsdp_config is not a mapping"),
        ("a: " + "x" * 1_100_000, "larger than 1000 kB"),
        ("a: \0\n", "control character"),
        ("compute_environment: AMAZON_SAGEMAKER\n", "AMAZON_SAGEMAKER is not LOCAL_MACHINE"),
    ],
)
def test_a_config_that_can_not_be_read_is_refused(tmp_path: Path, config: str, message: str) -> None:
    with pytest.raises(OrchError, match=message):
        accelerated(config, tmp_path)


@pytest.mark.parametrize(
    ("options", "hosts", "nproc", "gpus"),
    [
        ("", ["n1", "n2"], 4, None),
        ("--num_nodes 1 --num_gpus 2", ["n1"], 2, None),
        ("--include n2", ["n2"], 4, None),
        ("-i n1:0,1@n2:0,1", ["n1", "n2"], 2, "0,1"),
        ("--exclude n1", ["n2"], 4, None),
        ("-e n1:3@n2:3", ["n1", "n2"], 3, "0,1,2"),
    ],
)
def test_the_hosts_of_deepspeed(tmp_path: Path, options: str, hosts: list[str], nproc: int, gpus: str | None) -> None:
    (tmp_path / "hosts").write_text("# mine\nn1 slots=4\nn2  slots=4 # too\n\n")
    found = pasted(f"deepspeed --hostfile=hosts {options} train.py", tmp_path)
    assert (found.hosts, found.nodes, found.nproc) == (hosts, len(hosts), nproc)
    assert found.env.get("CUDA_VISIBLE_DEVICES") == gpus


def test_hosts_that_would_start_other_ranks_are_refused(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("n1 slots=4\nn2 slots=4\n")
    for options, words in (("-e n1:3", "different numbers of GPUs"), ("-i n1:0@n2:1", "chooses other GPUs")):
        with pytest.raises(UsageError, match=words):
            pasted(f"deepspeed --hostfile=hosts {options} train.py", tmp_path)


def test_gpus_of_this_machine(tmp_path: Path) -> None:
    found = pasted("deepspeed --include localhost:2,3 --launcher pdsh train.py", tmp_path)
    assert (found.hosts, found.nodes, found.nproc, found.env) == ([], 1, 2, {"CUDA_VISIBLE_DEVICES": "2,3"})
    assert "deepspeed's --launcher pdsh was left out" in found.notes


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("n1 slots=x\n", "", "hosts:1: 'n1 slots=x' is not a line of a hostfile"),
        ("n1 slots=1\nn1 slots=1\n", "", "hosts:2: "),
        ("n1 slots=1\n", "-i n9", "GPUs of n9 that are not among the slots of"),
        ("n1 slots=1\n", "-i n1:4", "GPUs of n1 that are not among the slots of"),
        ("n1 slots=1\n", "-i n1 -e n1", "not both"),
        ("n1 slots=1\n", "-i n1:x", "can't be read"),
        ("", "-i n1", "names no GPUs, and there is no hostfile"),
        ("x" * ((1 << 20) + 1), "", "the file is larger than 1 MiB"),
    ],
)
def test_hosts_that_can_not_be_read_are_refused(tmp_path: Path, text: str, options: str, message: str) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(OrchError, match=message):
        pasted(f"deepspeed --hostfile hosts {options} train.py", tmp_path)


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for line in ("deepspeed --hostfile pipe t.py", "accelerate launch --config_file pipe t.py"):
        with pytest.raises(OrchError, match=r"it is a pipe|not a regular file"):
            pasted(line, tmp_path)


def test_the_folder_of_an_unknown_user_is_not_there(tmp_path: Path) -> None:
    for line in ("accelerate launch --config_file ~no-such-user/c t.py", "deepspeed --hostfile ~no-such-user/h t.py"):
        with pytest.raises(UsageError, match="there is no such file here"):
            pasted(line, tmp_path)
    files = LauncherFiles(tmp_path, {"HF_HOME": "~no-such-user/hf"})
    assert read_words(["accelerate", "launch", "t.py"], files).nproc == "auto"

"""Every node derives the same ranks; one rank gets what torchrun would give it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.protocol.ranks import RANK_VARIABLES, Binding, bind, rank_argv, rank_environment
from orchestrator.protocol.task import NodeTask, Program

# What torchrun gives a rank, but for OMP_NUM_THREADS, which must be set before torch is imported.
TORCHRUN = {
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_USE_AGENT_STORE", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
}  # fmt: skip


def task(**values: object) -> NodeTask:
    return replace(
        NodeTask("r-1", 1, 3, ("n1", "n2", "n3"), 4, "/run", "/code", Program("script", "train.py"), "fork", "gloo",
                 "python3", ("10.0.0.1",), (20000,)),
        **values,
    )  # fmt: skip


@given(st.lists(st.integers(1, 64), min_size=1, max_size=40))
def test_the_nodes_ranks_partition_the_world(nprocs: list[int]) -> None:
    bindings = bind(nprocs)
    ranks = [b.rank_offset + local for b in bindings for local in range(b.nproc)]
    assert ranks == list(range(sum(nprocs)))
    assert [b.nproc for b in bindings] == nprocs
    assert [b.node_rank for b in bindings] == list(range(len(nprocs)))
    assert {(b.world_size, b.nnodes) for b in bindings} == {(sum(nprocs), len(nprocs))}


def test_three_nodes_of_eight_are_24_ranks() -> None:
    assert [(b.rank_offset, b.world_size) for b in bind([8, 8, 8])] == [(0, 24), (8, 24), (16, 24)]


def test_a_rank_gets_every_variable_of_torchrun() -> None:
    binding = bind([2, 4, 1])[1]
    env = rank_environment(task(), binding, 3, attempt=2, master_addr="10.0.0.1", master_port=4242, serves_store=True)
    assert set(env) >= TORCHRUN
    assert all(isinstance(value, str) for value in env.values())
    assert {name: env[name] for name in TORCHRUN - {"TORCHELASTIC_ERROR_FILE"}} == {
        "RANK": "5", "LOCAL_RANK": "3", "WORLD_SIZE": "7", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "3", "ROLE_RANK": "5", "ROLE_WORLD_SIZE": "7", "ROLE_NAME": "default",
        "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4242", "TORCHELASTIC_RUN_ID": "r-1",
        "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    }  # fmt: skip


def test_the_job_may_say_how_errors_of_nccl_end_a_process() -> None:
    chosen = task(env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"})
    env = rank_environment(chosen, bind([2, 4, 1])[1], 3, attempt=0, master_addr="m", master_port=1, serves_store=True)
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in env


def test_numbers_of_gpus_are_those_of_nvidia_smi_unless_the_job_says_otherwise() -> None:
    where: dict[str, Any] = {"attempt": 0, "master_addr": "m", "master_port": 1, "serves_store": True}
    order = "CUDA_DEVICE_ORDER"
    assert rank_environment(task(), bind([2, 4, 1])[1], 0, **where)[order] == "PCI_BUS_ID"
    assert order not in rank_environment(task(env={order: "FASTEST_FIRST"}), bind([2, 4, 1])[1], 0, **where)


def test_what_the_shell_may_not_pass_on_are_torchruns_names() -> None:
    assert set(RANK_VARIABLES) >= TORCHRUN - {"TORCH_NCCL_ASYNC_ERROR_HANDLING"}


def test_no_two_ranks_share_a_file() -> None:
    files = [
        (env["TORCHELASTIC_ERROR_FILE"], env["ORCH_BEAT_FILE"])
        for attempt in range(2)
        for binding in bind([2, 2])
        for local in range(2)
        for env in [
            rank_environment(task(node_rank=binding.node_rank), binding, local, attempt=attempt, master_addr="m",
                             master_port=1, serves_store=True)
        ]
    ]  # fmt: skip
    assert len({name for pair in files for name in pair}) == 16


@pytest.mark.parametrize(
    ("program", "argv"),
    [
        (Program("module", "a.b", ("x",)), ["python3", "-m", "a.b", "x"]),
        (Program("script", "a b.py"), ["python3", "a b.py"]),
        (Program("command", "sh", ("-c", "echo $RANK")), ["sh", "-c", "echo $RANK"]),
        (Program("script", "t.py", ("x",), "--local_rank"), ["python3", "t.py", "--local_rank=1", "x"]),
        (Program("module", "a.b", (), "--local-rank"), ["python3", "-m", "a.b", "--local-rank=1"]),
    ],
)
def test_argv_of_a_rank(program: Program, argv: list[str]) -> None:
    assert rank_argv(task(program=program), 1) == argv


def test_of_several_instances_of_mig_each_rank_is_shown_its_own() -> None:
    def shown(visible: str, **values: Any) -> list[str | None]:
        told = task(env={"ORCH_GPUS": visible}, **values)
        where: dict[str, Any] = {"attempt": 0, "master_addr": "m", "master_port": 1, "serves_store": True}
        made = [rank_environment(told, Binding(0, 1, 2, 0, 2), local_rank, **where) for local_rank in range(2)]
        return [each.get("CUDA_VISIBLE_DEVICES") for each in made]

    assert shown("MIG-a,MIG-b", nproc=2) == ["MIG-a", "MIG-b"]
    assert shown("GPU-a,GPU-b", nproc=2) == [None, None]  # what the job or its lease says holds for all
    assert shown("MIG-a", nproc=2) == [None, None]

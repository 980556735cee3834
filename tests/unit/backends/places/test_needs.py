"""How many GPUs, and which, the ranks of a node need, and how several nodes of one machine divide its GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.backends.places.needs import divided, need_of, needs_of
from orchestrator.errors import BackendError
from orchestrator.protocol.task import NodeTask, Program

TASK = NodeTask("r-1", 0, 1, ("a",), 1, "/r", "/c", Program("module", "x"), "auto", "auto", "python", (), (1, 2))


def hello(count: int, visible: str | None = None) -> dict[str, Any]:
    return {
        "devices": [{"name": f"GPU-{each}", "number": each, "card": f"GPU-{each}"} for each in range(count)],
        "visible": visible,
    }


@pytest.mark.parametrize(
    ("task", "machine", "count", "among"),
    [
        ({}, hello(0), 0, None),
        ({"nproc": 2}, hello(4), 2, None),
        ({"nproc": None}, hello(4), 4, None),
        ({"nproc": None}, hello(4, "1,2"), 2, None),
        ({"nproc": 8}, hello(4), 0, None),  # more ranks than GPUs: they train on the CPU
        ({"uses_gpus": False}, hello(4), 0, None),
        ({"all_gpus": True}, hello(4), 4, None),  # dp, dp-balanced, model-parallel: one process over all
        ({"all_gpus": True, "gpus": 2}, hello(4), 2, None),
        ({"nproc": 1, "gpus": 3}, hello(4), 3, None),
        ({"nproc": 1, "env": {"CUDA_VISIBLE_DEVICES": "3,2"}}, hello(4), 1, ("GPU-3", "GPU-2")),
        ({"nproc": None, "env": {"CUDA_VISIBLE_DEVICES": "GPU-1"}}, hello(4), 1, ("GPU-1",)),
        ({"all_gpus": True, "env": {"CUDA_VISIBLE_DEVICES": "3,2"}}, hello(4), 2, ("GPU-3", "GPU-2")),
        ({"env": {"CUDA_VISIBLE_DEVICES": ""}}, hello(4), 0, ()),
    ],
)
def test_a_nodes_ranks_hold(
    task: dict[str, Any], machine: dict[str, Any], count: int, among: tuple[str, ...] | None
) -> None:
    need = need_of(replace(TASK, **task), machine, None)
    assert (need.count, need.among) == (count, among)


def test_a_job_that_contradicts_itself_or_the_machine_is_refused() -> None:
    three = replace(TASK, gpus=3, env={"CUDA_VISIBLE_DEVICES": "0,1"})
    with pytest.raises(ValueError, match=r"requests 3 GPUs, but its CUDA_VISIBLE_DEVICES=0,1 names only 2"):
        need_of(three, hello(4), None)
    with pytest.raises(ValueError, match=r"names 1 \(GPU-1\), and the login shell there allows only .*=0,2,3"):
        need_of(replace(three, gpus=None), hello(4, "0,2,3"), None)


@pytest.mark.parametrize(
    ("nproc", "there", "count", "nprocs", "backend"),
    [
        ((2, 2), 4, 4, [2, 2], "auto"),
        ((None, None), 8, 8, [4, 4], "auto"),
        ((None, None), 3, 2, [1, 1], "auto"),
        ((None, 1), 4, 3, [2, 1], "auto"),
        ((2, 2), 3, 0, [2, 2], "gloo"),  # too few: all on the CPU
        ((None, None), 1, 0, [1, 1], "gloo"),
        ((2, 2), 0, 0, [2, 2], "auto"),
        ((2,), 1, 0, [2], "auto"),  # one node is as the user says: the ranks refuse it
    ],
)
def test_nodes_on_one_machine_share_its_gpus(
    nproc: tuple[int | None, ...], there: int, count: int, nprocs: list[int], backend: str
) -> None:
    tasks = tuple(replace(TASK, node_rank=rank, nnodes=len(nproc), nproc=each) for rank, each in enumerate(nproc))
    found, need = needs_of(tasks, range(len(tasks)), "this machine", hello(there), None)
    assert need.count == count
    assert [each.nproc for each in found] == nprocs
    assert {each.backend for each in found} == {backend}
    if backend == "gloo":
        assert found[0].env["CUDA_VISIBLE_DEVICES"] == ""


def test_nodes_that_are_told_to_use_nccl_are_refused_where_gpus_are_too_few() -> None:
    tasks = tuple(replace(TASK, node_rank=rank, nnodes=2, nproc=2, backend="nccl") for rank in range(2))
    with pytest.raises(BackendError, match="this machine: it has 3 GPUs for 4 ranks with nccl"):
        needs_of(tasks, range(2), "this machine", hello(3), None)


def test_each_node_gets_as_many_of_the_held_gpus_as_it_has_ranks() -> None:
    tasks = [replace(TASK, node_rank=0, nproc=2), replace(TASK, node_rank=1, nproc=8, gpus=1)]
    assert divided(["GPU-0", "GPU-1", "GPU-2"], tasks) == [["GPU-0", "GPU-1"], ["GPU-2"]]
    assert divided(["GPU-0", "GPU-1"], tasks[:1]) == [["GPU-0", "GPU-1"]]
    assert divided([], tasks) == [[], []]

"""What the order of a replay tells the node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.operations.debugging.replay import Rank, _order
from orchestrator.protocol.ranks import Binding, bind, rank_environment
from orchestrator.protocol.task import NodeTask, Program


@pytest.mark.parametrize(("nproc", "has_variables"), [(2, True), (1, False)])
def test_a_rank_that_had_torchruns_variables_has_them_when_it_runs_alone(nproc: int, has_variables: bool) -> None:
    program = Program("script", "train.py", runs_alone=True)
    before = NodeTask(
        "r-1", 0, 1, ("a",), nproc, "/run", "/code", program, "exec", "auto", "/env/python", ("10.0.0.1",), (20000,)
    )
    nowhere: Any = None
    one = Rank(nowhere, nowhere, before, bind([nproc])[0], 0, "10.0.0.1", 4242, 0)
    order = json.loads(_order(one, before, alone=True))
    variables = rank_environment(
        NodeTask.from_json(order["task"]), Binding(**order["binding"]), order["local_rank"],
        attempt=0, master_addr=order["master_addr"], master_port=order["master_port"], serves_store=False,
    )  # fmt: skip
    assert variables.get("WORLD_SIZE") == ("1" if has_variables else None)

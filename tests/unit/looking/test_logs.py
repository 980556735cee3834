"""The logs that a command reads: a rank and a node that the run does not have are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import OrchError
from orchestrator.looking import logs
from orchestrator.outcome.verdict import NodeState, NodeStatus
from orchestrator.runs.files.logs import Selection
from orchestrator.runs.state import RunState, RunStatus
from orchestrator.runs.store import RunDir


@pytest.fixture(autouse=True)
def _state(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = tuple(NodeState(node, f"n{node}", NodeStatus.RUNNING) for node in range(2))
    state = RunState("r-222222", "r", "p", 1.0, RunStatus.RUNNING, world_size=4, nodes=nodes)
    monkeypatch.setattr(logs, "state_of", lambda _: state)


@pytest.mark.parametrize(
    ("selection", "problem"),
    [
        (Selection(rank=4), "no rank 4: the run has ranks 0-3"),
        (Selection(rank=4, node=1), "no rank 4: the run has ranks 0-3"),
        (Selection(node=2), "no node 2: the run has nodes 0-1"),
    ],
)
def test_a_rank_or_node_that_the_run_does_not_have_is_refused(selection: Selection, problem: str) -> None:
    with pytest.raises(OrchError, match=f"^{problem}$"):
        logs.check(RunDir(Path("/r-222222")), selection)


@pytest.mark.parametrize("selection", [Selection(), Selection(rank=3), Selection(node=1), Selection(rank=3, node=1)])
def test_the_last_rank_and_node_are_taken(selection: Selection) -> None:
    logs.check(RunDir(Path("/r-222222")), selection)

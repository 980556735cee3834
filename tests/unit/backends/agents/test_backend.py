"""What the SSH backend does before there is anything to look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.agents.backend import Agents
from orchestrator.backends.agents.handle import Handle
from orchestrator.backends.agents.over_ssh import AgentsOverSsh
from orchestrator.backends.settings import Host
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir
from orchestrator.transport.address import Address
from tests.machines import FakeMachine, FakePool


def test_a_run_whose_submit_is_still_at_work_is_followed_later(tmp_path: Path) -> None:
    """Before there is a record of its hosts, there would be none to follow."""
    run, backend = RunDir(tmp_path / "r-1"), AgentsOverSsh()
    run.path.mkdir()
    run.write("run.json", {"nnodes": 1, "profile": {"kind": "ssh", "hosts": ["n1"]}})
    backend.wait(run, 0.0)
    assert backend._watchers == {}


@pytest.mark.parametrize("kind", ["local", "ssh"])
def test_the_agents_of_the_newest_start_are_told_which_others_have_died(tmp_path: Path, kind: str) -> None:
    run = RunDir(tmp_path / "r-1")
    run.path.mkdir()
    run.write("run.json", {"nnodes": 2, "profile": {"kind": kind, "hosts": ["n1", "n2"]}})
    hosts = (Host(Address("n1")), Host(Address("n2")))
    Handle(HandleStatus.SUBMITTED, 3, hosts, {}, (0, 1)).write(run)
    machines = [FakeMachine(name, {"write_file": {}}) for name in ("n1", "n2")]
    pool: Any = FakePool(*machines)
    backend = AgentsOverSsh(pool) if kind == "ssh" else Agents()
    backend.tell_losses(run, (1,))
    if kind == "local":
        told = json.loads((run.path / "lost.json").read_text())
        assert told == {"start": 3, "nodes": [1]}
    else:
        assert [machine.verbs() for machine in machines] == [["write_file"]] * 2

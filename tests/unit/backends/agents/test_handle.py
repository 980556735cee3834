"""The record of a run's agents."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from orchestrator.backends.agents.backend import Agents
from orchestrator.backends.agents.handle import Handle, first_handle, read_handle
from orchestrator.backends.settings import AgentsSettings, Host
from orchestrator.node.system.processes import MARK, identify
from orchestrator.node.system.processes import mark as mark_of
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir, create_run
from orchestrator.transport.address import HERE, Address
from tests.patience import PATIENCE
from tests.unit.profiles import profile_of, recorded


def test_a_handle_comes_back_and_a_damaged_one_still_knows_the_hosts(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert read_handle(run) is None
    handle = Handle(
        HandleStatus.SUBMITTED, 2, (Host(Address("a")), Host(Address("b"), python="p")), {1: (7, 9)}, (0, 2)
    )
    handle.write(run)
    assert read_handle(run) == handle
    again = Handle.of_start(handle, 3, (Host(Address("a")), Host(Address("c"))), (0, 1))
    again.write(run)
    assert read_handle(run) == again
    assert again.former == (Host(Address("b"), python="p"),)
    back = Handle.of_start(again, 4, (Host(Address("b"), python="p"), Host(Address("c"))), (0, 1))
    assert back.former == (Host(Address("a")),)
    run.write("run.json", recorded(hosts=["a"]))
    (tmp_path / "handle.json").write_text('{"state": "submitted", "sta')
    assert read_handle(run) == Handle(HandleStatus.SUBMITTED, 0, (Host(Address("a")),), {}, (0,), here="")


@pytest.mark.parametrize("machine", [os.uname().nodename, "another"])
def test_a_local_run_is_seen_on_its_own_machine_only(tmp_path: Path, machine: str) -> None:
    run, here, other = RunDir(tmp_path), Host(Address(HERE)), machine if machine != os.uname().nodename else ""
    Handle(HandleStatus.SUBMITTED, 0, (here, here), {1: (7, 9)}, (0, 1), here=machine).write(run)
    sight = Agents().look(run)
    assert (sight.alive, sight.other_machine) == ({1: None if other else False}, other)
    (proof,) = Agents().clean_up(run)
    assert (proof.host, proof.is_unreachable) == (machine, bool(other))


def test_what_is_left_of_a_local_run_is_ended_whatever_its_records_say(tmp_path: Path) -> None:
    run = create_run(tmp_path, "r-234567", {"kind": "local", "nnodes": 1})
    mark = {**os.environ, MARK: mark_of("r-234567", 0)}
    with subprocess.Popen(["sleep", "600"], env=mark) as process:
        for name in ("run.json", "handle.json"):
            (run.path / name).write_text("{")
        (proof,) = Agents().clean_up(run)
        assert (proof.ended, proof.is_clean) == (1, True)
        assert process.wait(PATIENCE) == -signal.SIGKILL


def test_what_an_agent_has_recorded_of_itself_counts_if_its_submit_has_written_no_handle(tmp_path: Path) -> None:
    run, me = RunDir(tmp_path), identify(os.getpid())
    assert me is not None
    run.write("run.json", {"nnodes": 3, **recorded("local", nodes=3)})
    first_handle(AgentsSettings.of(profile_of("local", nodes=3))).write(run)
    for node, own in enumerate(({"pid": me.pid, "started": me.started}, {"pid": me.pid, "started": 1}, {"pid": "x"})):
        run.node(node).mkdir(parents=True)
        run.write(f"nodes/{node}/agent.json", own)
    assert Agents().look(run).alive == {0: True, 1: False, 2: False}
    (tmp_path / "handle.json").write_text("{")
    assert Agents().look(run).alive == {0: True, 1: False, 2: False}

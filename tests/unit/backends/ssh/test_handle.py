"""The record of a run's agents over SSH."""

from __future__ import annotations

from pathlib import Path

from orchestrator.backends.settings import Host
from orchestrator.backends.ssh.handle import Handle, read_handle
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir
from orchestrator.transport.address import Address


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
    run.write("run.json", {"profile": {"hosts": [{"host": "a"}], "nodes": 1}})
    (tmp_path / "handle.json").write_text('{"state": "submitted", "sta')
    assert read_handle(run) == Handle(HandleStatus.SUBMITTED, 0, (Host(Address("a")),), {}, (0,))

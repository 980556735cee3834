"""A forwarded port: what is under way when it is closed is ended, and waited for."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.node.system.processes import identify
from orchestrator.transport import forwarding
from orchestrator.transport.forwarding import Forwarding, listen_here
from tests.patience import PATIENCE

# Never answers, and does not leave when its input is closed.
SLOW = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'w'), flush=True); time.sleep(600)"


def test_a_run_that_is_over_before_its_node_answers_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(forwarding, "LEAVING_SECONDS", 0.2)
    begun, said = tmp_path / "begun", list[str]()

    def command(_: str) -> Sequence[str]:
        return (sys.executable, "-c", SLOW, str(begun))

    with Forwarding(command, said.append, listen_here()) as way:
        assert way.reach(lambda: begun.exists() and begun.read_text().endswith("\n")) is None
    assert identify(int(begun.read_text())) is None
    assert said == caplog.messages == []


def test_many_connections_that_fail_alike_are_reported_once() -> None:
    said = list[str]()
    with Forwarding(lambda _: ("sh", "-c", "echo no way in >&2"), said.append, listen_here()) as way:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", way.port)) as connection:
                connection.settimeout(PATIENCE)
                with contextlib.suppress(ConnectionResetError):
                    assert connection.recv(1) == b""
    assert said == ["the node can't be reached: no way in"]

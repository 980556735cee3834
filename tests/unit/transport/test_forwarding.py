"""A forwarded port: what is under way when it is closed is ended, and waited for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.node.system.processes import identify
from orchestrator.transport import forwarding
from orchestrator.transport.forwarding import Forwarding, listen_here

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

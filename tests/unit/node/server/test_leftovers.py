"""What is left of runs here: one entry a run, and whether one of its agents lives, wherever its folder is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator.node.server import leftovers
from orchestrator.node.system import processes
from orchestrator.node.system.processes import Marked, identify


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_an_agent_that_lives_is_found_by_the_runs_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_elsewhere: bool
) -> None:
    me = identify(os.getpid())
    assert me is not None
    folder = tmp_path / ("other" if is_elsewhere else "orch") / "runs" / "r-1"
    (folder / "nodes" / "0").mkdir(parents=True)
    (folder / "nodes" / "0" / "agent.json").write_text(json.dumps({"pid": me.pid, "started": me.started}))
    (tmp_path / "orch" / "runs" / "r-2").mkdir(parents=True)
    carried = [Marked(me, os.getuid(), "r-1", "0", str(folder)), Marked(me, os.getuid() + 1, "r-3", "0", "")]
    monkeypatch.setattr(processes, "marked_processes", lambda: carried)
    monkeypatch.setattr(leftovers, "everywhere", lambda _: [])
    found = leftovers.leftovers({"workdir": str(tmp_path / "orch")}, b"")[0]["runs"]
    words = [f"{me.pid} ({me.command})"]
    assert found == {
        "r-1": {"folder": not is_elsewhere, "processes": words, "agent": True},
        "r-2": {"folder": True, "processes": [], "agent": False},
    }

"""What the SSH backend does before there is anything to look at."""

from __future__ import annotations

from pathlib import Path

from orchestrator.backends.agents.over_ssh import AgentsOverSsh
from orchestrator.runs.store import RunDir


def test_a_run_whose_submit_is_still_at_work_is_followed_later(tmp_path: Path) -> None:
    """Before there is a record of its hosts, there would be none to follow."""
    run, backend = RunDir(tmp_path / "r-1"), AgentsOverSsh()
    run.path.mkdir()
    run.write("run.json", {"nnodes": 1, "profile": {"kind": "ssh", "hosts": ["n1"]}})
    backend.wait(run, 0.0)
    assert backend._watchers == {}

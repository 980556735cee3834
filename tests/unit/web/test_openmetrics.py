"""The text for Prometheus: every sample has its family, and no name of a run can end its own label."""

from __future__ import annotations

from orchestrator.runs.state import RunStatus
from orchestrator.views.runs import RunRow, runs_view
from orchestrator.web.metrics import text_of

HOSTILE = 'a"} 1\n# EOF\\'


def test_runs_are_counted_and_those_that_go_on_are_named() -> None:
    live = RunRow("a-111111", HOSTILE, "local", RunStatus.RUNNING, 1.0, started=2.5, world_size=4, restarts=1)
    ended = RunRow("b-222222", "b", "local", RunStatus.FAILED, 1.0, world_size=2)
    pending = RunRow("c-333333", "c", "local", RunStatus.PENDING, 1.0)
    lines = text_of(runs_view([live, ended, pending])).splitlines()
    name = HOSTILE.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    labels = f'{{run="a-111111",name="{name}",profile="local"}}'
    assert {
        'orch_runs{state="running"} 1', 'orch_runs{state="failed"} 1', 'orch_runs{state="succeeded"} 0',
        f"orch_run_ranks{labels} 4", f"orch_run_restarts{labels} 1", f"orch_run_start_seconds{labels} 2.5",
    } <= set(lines)  # fmt: skip
    assert not any("b-222222" in line for line in lines)
    assert not any(line.startswith(('orch_run_ranks{run="c', 'orch_run_start_seconds{run="c')) for line in lines)
    assert lines[-1] == "# EOF"
    assert lines.count("# EOF") == 1

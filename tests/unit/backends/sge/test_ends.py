"""The end of a job that Grid Engine's accounting does not have."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

from orchestrator.backends.batch.site import Site
from orchestrator.backends.sge.scheduler import GridEngine
from orchestrator.errors import BackendError
from orchestrator.runs.store import create_run
from orchestrator.transport.machine import LocalMachine

UNKNOWN = "echo 'Following jobs do not exist: 17' >&2; exit 1"


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """qstat and qacct, which do not know the job."""
    for name in ("qstat", "qacct"):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{UNKNOWN}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_every_process_waits_for_the_record_from_the_end_of_the_agents() -> None:
    lag = GridEngine.accounting_lag
    for _ in range(2):  # two processes, as `orch wait` and `orch status` are
        site = Site(GridEngine(), LocalMachine)
        with pytest.raises(BackendError, match="the accounting of Grid Engine does not show its end yet"):
            site.ended("17", "count-abc234", None, lambda: time.time() - lag / 2)
        found = site.ended("17", "count-abc234", None, lambda: time.time() - lag)
        assert found is not None
        assert found.phase == "ended"
    with pytest.raises(
        BackendError, match="the accounting of Grid Engine does not show its end yet"
    ):  # an agent was killed
        Site(GridEngine(), LocalMachine).ended("17", "count-abc234", None)


@pytest.mark.parametrize(("state", "ends"), [("s", True), ("S", True), ("hqw", True), ("qw", True), ("r", False)])
def test_a_job_that_can_not_read_its_cancel_is_deleted(state: str, ends: bool, tmp_path: Path) -> None:
    run = create_run(tmp_path / "home", "count-abc234", {"nnodes": 1, "kind": "sge"})
    run.write("handle.json", {"state": "submitted", "job": "17"})
    row = f"<JB_job_number>17</JB_job_number><JB_name>count-abc234</JB_name><state>{state}</state>"
    (tmp_path / "qstat").write_text(f"#!/bin/sh\necho '<job_list>{row}</job_list>'\n")
    (tmp_path / "qdel").write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/deleted\n')
    (tmp_path / "qdel").chmod(0o755)
    GridEngine.here().cancel([run])
    assert (tmp_path / "deleted").exists() == ends

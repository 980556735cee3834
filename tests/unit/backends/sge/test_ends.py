"""The end of a job that Grid Engine's accounting does not have."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

from orchestrator.backends.batch.site import Site
from orchestrator.backends.sge.scheduler import GridEngine
from orchestrator.errors import BackendError
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

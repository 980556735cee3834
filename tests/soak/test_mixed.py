"""A sample of the mixed hour on this machine; the hour itself is tests/cluster/test_mixed_hour.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.node.system.processes import marked_processes
from orchestrator.supervisor.background import supervisor_of
from tests.local.conftest import Orch

from .conftest import Soak
from .mixed import FAULTS, LINK, Ground

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

SHORT = ('job.args=["60", "0.2"]', f"job.limits.link={LINK}", "profile.nproc_per_node=1")


@pytest.mark.full(
    "tests/local/test_drill.py::test_what_was_promised_and_did_not_come_is_named_and_the_run_is_kept",
    "tests/local/test_failures.py::test_a_killed_rank_is_restarted_from_the_checkpoint",
)
def test_drills_with_faults_drawn_at_random(orch: Orch, soak: Soak, tmp_path: Path) -> None:
    orch = orch.with_torch
    standing = orch.submit("hello", "-p", "local", "--set", 'job.command=["sleep", "3600"]', "--nproc-per-node", "1")

    def supervisor() -> int:
        found = supervisor_of(orch.home)
        assert found is not None
        return found.pid

    ground = Ground(
        "local", orch, ("local-2x2", *(f"--set={each}" for each in SHORT)), supervisor, str(tmp_path / "alone")
    )
    faults = list(FAULTS) * 3 if soak.full else soak.chance.sample(FAULTS[:4], 2)
    for fault in faults:
        ground.drill(soak, fault)
    print(ground.check_supervisor(soak))
    assert orch("cancel", standing.run_id, "--now").code == 0
    left = [each for each in marked_processes() if each.run_id.startswith("drill-") and str(tmp_path) in each.run_dir]
    soak.check(not left, f"left: {left}")
    soak.end("drills on this machine with a fault drawn at random", len(faults))

"""Each scheduler among orch's own kinds is in all tables that its runs read. A run of a kind that is missing in one of
them starts nowhere, although the scheduler accepts its job.
"""

from __future__ import annotations

import pytest

from orchestrator.node.agent.job import WAYS
from orchestrator.protocol import allocation
from orchestrator.protocol.layout import TITLES
from orchestrator.specs.allocation import OWN_WAYS
from orchestrator.specs.kinds import OWN, Kind
from orchestrator.transport import in_job

SCHEDULERS = [kind for kind in OWN.values() if kind.scheduler]


@pytest.mark.parametrize("kind", SCHEDULERS, ids=[kind.name for kind in SCHEDULERS])
def test_a_scheduler_is_in_each_table_that_its_runs_read(kind: Kind) -> None:
    assert TITLES.get(kind.name) == kind.scheduler
    assert kind.verb != "job" or kind.name in WAYS
    assert kind.name in {row[0] for row in allocation._SOURCES}
    assert kind.name in in_job._JOB_STATES


def test_each_command_of_a_scheduler_that_a_profile_can_name_can_be_started() -> None:
    assert set(OWN_WAYS) <= TITLES.keys()
    assert set(OWN_WAYS.values()) == in_job.STARTERS.keys()

"""Each scheduler among orch's own kinds has a row of facts, without which no run of the kind would start."""

from __future__ import annotations

import pytest

from orchestrator.protocol.schedulers import SCHEDULERS
from orchestrator.specs.kinds import OWN, Kind

KINDS = [kind for kind in OWN.values() if kind.scheduler]


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_a_first_process_that_starts_the_agents_has_a_command_for_it(kind: Kind) -> None:
    assert kind.verb != "job" or SCHEDULERS[kind.name].remote_shell

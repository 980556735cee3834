"""Each scheduler among orch's own kinds is in all tables that its runs read. A run of a kind that is missing in one of
them starts nowhere, although the scheduler accepts its job.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from orchestrator.errors import SpecError
from orchestrator.node.agent.job import WAYS
from orchestrator.protocol import allocation
from orchestrator.protocol.layout import TITLES
from orchestrator.specs.allocation import OWN_WAYS
from orchestrator.specs.documents.loader import load, load_profile
from orchestrator.specs.kinds import OWN, Kind, every, model_of
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


KINDS = list(every())
NEEDED = {"ssh": "hosts: [n1]\n"}
"""What a profile of a kind can't lack."""


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_a_wrong_type_is_refused_by_the_model_that_the_kind_registers(kind: Kind, tmp_path: Path) -> None:
    """The model is pydantic's, and its error becomes a sentence with a position."""
    path = tmp_path / "p.yaml"
    path.write_text(f"kind: {kind.name}\n{NEEDED.get(kind.name, '')}python: 7\n")
    with pytest.raises(SpecError, match=r"p\.yaml:\d+:\d+: .*python") as refused:
        load_profile(str(path))
    by_model = refused.value.__context__
    assert isinstance(by_model, ValidationError)
    assert model_of(kind).__name__ in by_model.title


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_a_job_with_a_wrong_type_is_refused_by_pydantic_for_each_kind(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(f"kind: {kind.name}\n{NEEDED.get(kind.name, '')}")
    (tmp_path / "job.yaml").write_text("command: ['true']\nenv: 7\n")
    with pytest.raises(SpecError, match=r"job\.yaml:2:6: .*env") as refused:
        load(str(tmp_path / "job.yaml"), str(tmp_path / "p.yaml"))
    assert isinstance(refused.value.__context__, ValidationError)
    assert "Job" in refused.value.__context__.title

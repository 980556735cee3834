"""The kinds of profiles: what their runs need, and how their models refuse a wrong type."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from orchestrator.errors import SpecError
from orchestrator.protocol.schedulers import SCHEDULERS
from orchestrator.specs.documents.loader import load, load_profile
from orchestrator.specs.kinds import OWN, Kind, every, model_of


@pytest.mark.parametrize("name", [kind.name for kind in OWN.values() if kind.verb == "job"])
def test_a_first_process_that_starts_the_agents_has_a_command_for_it(name: str) -> None:
    """Without it, a run of the kind starts nowhere, although the scheduler accepts its job."""
    assert SCHEDULERS[name].remote_shell


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

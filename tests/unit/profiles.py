"""Profiles for tests, made as a profile file is."""

from __future__ import annotations

from typing import Any

from orchestrator.specs.border import valid
from orchestrator.specs.kinds import kind_named, model_of
from orchestrator.specs.profiles import AnyProfile


def profile_of(kind: str = "ssh", **fields: Any) -> AnyProfile:
    """The profile `lab` of this kind."""
    return valid(model_of(kind_named(kind)), {"name": "lab", "kind": kind, **fields})


def recorded(kind: str = "ssh", **fields: Any) -> dict[str, Any]:
    """The fields of run.json that describe the profile of a run."""
    return {"kind": kind, "profile": profile_of(kind, **fields).to_json()}

"""Any profile: the union of the models of all kinds, told apart by `kind`."""

from __future__ import annotations

from typing import Annotated, Any, Union

from pydantic import Field, TypeAdapter

from orchestrator.specs.kinds import every, model_of
from orchestrator.specs.pbs_profile import PbsProfile
from orchestrator.specs.profile import LocalProfile, SshProfile
from orchestrator.specs.sge_profile import SgeProfile
from orchestrator.specs.slurm_profile import SlurmProfile

AnyProfile = LocalProfile | SshProfile | SlurmProfile | SgeProfile | PbsProfile
PROFILE: TypeAdapter[AnyProfile] = TypeAdapter(Annotated[AnyProfile, Field(discriminator="kind")])
"""A profile of one of orch's own kinds."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a profile of any kind, those that installed packages add included."""
    models = tuple(model_of(kind) for kind in every())
    union = Union[models]  # type: ignore[valid-type]  # noqa: UP007 (of models that are known only now)
    adapter: TypeAdapter[Any] = TypeAdapter(Annotated[union, Field(discriminator="kind")])
    return adapter.json_schema(mode="validation")

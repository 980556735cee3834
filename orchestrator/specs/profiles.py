"""The union of the profile classes of all kinds, with the field `kind` as its discriminator."""

from __future__ import annotations

from typing import Annotated, Any, Union

from pydantic import Field

from orchestrator.specs import border
from orchestrator.specs.kinds import every, model_of
from orchestrator.specs.pbs_profile import PbsProfile
from orchestrator.specs.profile import LocalProfile, SshProfile
from orchestrator.specs.sge_profile import SgeProfile
from orchestrator.specs.slurm_profile import SlurmProfile

AnyProfile = LocalProfile | SshProfile | SlurmProfile | SgeProfile | PbsProfile


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a profile of any kind, including the kinds that installed packages add."""
    union: Any = Union[tuple(model_of(kind) for kind in every())]  # noqa: UP007 (the classes are not static)
    return border.json_schema(Annotated[union, Field(discriminator="kind")])

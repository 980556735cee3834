"""The JSON Schema of a profile of any kind."""

from __future__ import annotations

from typing import Annotated, Any, Union

from pydantic import Field

from orchestrator.specs import border
from orchestrator.specs.kinds import every, model_of
from orchestrator.specs.profile import ProfileBase

AnyProfile = ProfileBase


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a profile of any kind, including the kinds that installed packages add."""
    union: Any = Union[tuple(model_of(kind) for kind in every())]  # noqa: UP007 (the classes are not static)
    return border.json_schema(Annotated[union, Field(discriminator="kind")])

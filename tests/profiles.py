"""Profiles for tests, without a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.specs import border
from orchestrator.specs.kinds import kind_named, model_of


def valid_profile(values: Mapping[str, Any]) -> Any:
    """Return the profile with these values, which are JSON types. Raises pydantic's ValidationError."""
    return border.valid(model_of(kind_named(values["kind"])), values)

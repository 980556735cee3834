"""Converts views to JSON types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

MOST_DEPTH: Final = 100  # the most levels of nesting, because a value from a user's file may have any number of levels
TOO_DEEP: Final = "…"


def to_json(value: Any, depth: int = MOST_DEPTH) -> Any:
    """Return a view as JSON types. NaN and infinities become null. Values nested deeper than `depth` become `…`."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return str(value)  # also the value of a StrEnum
    if value is None or isinstance(value, bool | int):
        return value
    if depth <= 0:
        return TOO_DEEP
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name), depth - 1) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(each, depth - 1) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(each, depth - 1) for each in value]
    return str(value)

"""enum.StrEnum for Python 3.9: a member equals its text, in comparisons, in JSON and in messages."""

from __future__ import annotations

import enum


class StrEnum(str, enum.Enum):
    """Base class for enums whose members are texts."""

    def __str__(self) -> str:
        """Return the member's text."""
        return str(self.value)

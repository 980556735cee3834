"""enum.StrEnum, which Python 3.9 lacks: a member is its text, in comparisons, in JSON and in sentences."""

from __future__ import annotations

import enum


class StrEnum(str, enum.Enum):
    """The base of a set of named states."""

    def __str__(self) -> str:
        """Return the member's text."""
        return str(self.value)

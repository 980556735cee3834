"""enum.StrEnum for Python 3.9. A member equals its text, in comparisons, JSON and messages."""

from __future__ import annotations

import enum
from typing import TypeVar


class StrEnum(str, enum.Enum):
    """Base class for enums whose members are texts."""

    def __str__(self) -> str:
        """Return the member's text."""
        return str(self.value)


_Member = TypeVar("_Member", bound=enum.Enum)


def member_of(kind: type[_Member], value: object) -> _Member | None:
    """Return the member with this value. Return None if no member has it, because the value is damaged or another
    version wrote it.
    """
    try:
        return kind(value) if isinstance(value, str) else None
    except ValueError:
        return None

"""The class that describes one mistake in a job or profile."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One mistake in a job or profile. `path` has the keys and list indices that lead to it."""

    path: tuple[str | int, ...]
    message: str
    at_key: bool = False

    @property
    def dotted(self) -> str:
        """Return the path in dotted form: `hosts[0].port`."""
        return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in self.path).removeprefix(".")

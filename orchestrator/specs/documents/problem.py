"""Something wrong with a document, at one of its fields."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, at a path of keys and list positions."""

    path: tuple[str | int, ...]
    message: str
    at_key: bool = False

    @property
    def dotted(self) -> str:
        """Return the path as one writes it: `hosts[0].port`."""
        return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in self.path).removeprefix(".")

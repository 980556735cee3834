"""The class of mistakes in documents."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One mistake in a document, at a path of keys and list indices."""

    path: tuple[str | int, ...]
    message: str
    at_key: bool = False

    @property
    def dotted(self) -> str:
        """Return the path in dotted form: `hosts[0].port`."""
        return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in self.path).removeprefix(".")

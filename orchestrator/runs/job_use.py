"""What a scheduler has measured of a run's job: what it was given, and how much of that it used."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class JobUse:
    """One job so far; None for what the scheduler has not measured or not limited."""

    job_id: str
    state: str  # in the scheduler's own word
    seconds: float
    limit_seconds: float | None
    cores: int
    core_seconds: float | None  # that its processes have computed
    memory: int | None  # bytes: the most of a step, its tasks at their most together
    memory_limit: int | None  # bytes, of all nodes

    @property
    def core_share(self) -> float | None:
        """Return how much of its cores' time it has computed, from 0 to 1."""
        given = self.cores * self.seconds
        return None if self.core_seconds is None or not given else self.core_seconds / given

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return asdict(self)

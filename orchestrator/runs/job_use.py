"""A scheduler's measurements of a run's job: the resources that it was given, and how much of them it used."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class JobUse:
    """The use of one job so far. None for values that the scheduler does not measure or limit."""

    job_id: str
    state: str  # in the scheduler's own words
    seconds: float
    limit_seconds: float | None
    cores: int
    core_seconds: float | None  # CPU time of its processes
    memory: int | None  # bytes: the highest of its steps, as the sum of the peaks of its tasks
    memory_limit: int | None  # bytes, for all nodes

    @property
    def core_share(self) -> float | None:
        """Return the share of the cores' time that the job has used, from 0 to 1."""
        given = self.cores * self.seconds
        return None if self.core_seconds is None or not given else self.core_seconds / given

    def to_json(self) -> dict[str, Any]:
        """Return the use as JSON types."""
        return asdict(self)

"""A scheduler's measurements of a run's job: the resources that the job was given, and how much of them it used."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class JobUse:
    """The resource usage of one job so far. A value is None if the scheduler does not measure or limit it."""

    job_id: str
    state: str  # the job's state in the scheduler's own words
    seconds: float
    limit_seconds: float | None
    cores: int
    core_seconds: float | None  # CPU time of the job's processes
    memory: int | None  # bytes: the sum of its tasks' peaks, for the job step with the largest sum
    memory_limit: int | None  # bytes, for all nodes

    @property
    def core_share(self) -> float | None:
        """Return the fraction of the cores' time that the job has used, from 0 to 1."""
        given = self.cores * self.seconds
        return None if self.core_seconds is None or not given else self.core_seconds / given

    def to_json(self) -> dict[str, Any]:
        """Return the use as JSON types."""
        return asdict(self)

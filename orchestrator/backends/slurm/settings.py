"""The fields of a Slurm profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class SlurmSettings:
    """A Slurm profile: the options of sbatch, and the login node on which sbatch runs."""

    name: str = ""
    nodes: int = 1
    spares: int = 0
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: int | None = None  # seconds
    gres: str | None = None
    gpus_per_node: int | None = None
    cpus_per_gpu: int | None = None
    cpus_per_task: int | None = None
    mem: int | None = None  # bytes per node
    constraint: str | None = None
    exclude: str | None = None
    sbatch: Mapping[str, str | int | bool] = field(default_factory=dict)
    login: str = ""  # empty if this machine is the login node
    python: str | None = None

    @property
    def nodes_of_job(self) -> int:
        """Return the number of nodes that is requested from sbatch."""
        return self.nodes + self.spares

    @staticmethod
    def of(profile: Mapping[str, Any]) -> SlurmSettings:
        """Return the settings of a profile, given as JSON types."""
        names = [each.name for each in fields(SlurmSettings)]
        return SlurmSettings(**{name: profile[name] for name in names if profile.get(name) is not None})

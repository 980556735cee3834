"""orch doctor and orch nodes: are a profile's machines fit to train, and who holds what on them?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.backends import backend_of

if TYPE_CHECKING:
    from orchestrator.backends.base import Check
    from orchestrator.specs.profile import AnyProfile


def examine(profile: AnyProfile, *, on_node: bool = False) -> list[Check]:
    """Check every node of an ssh profile, or Slurm as this machine meets it; UsageError for another kind.

    on_node: of a slurm profile, also what a short job finds on a node.
    """
    return backend_of(profile).doctor(profile, on_node=on_node)


def holdings(profile: AnyProfile) -> list[dict[str, Any]]:
    """List the hosts of an ssh profile and who holds what there, or Slurm's partitions; UsageError for another kind."""
    return backend_of(profile).holdings(profile)

"""The Slurm profile of a plan or a record."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.specs.profiles import AnyProfile
    from orchestrator.specs.slurm_profile import SlurmProfile


def settings_of(profile: AnyProfile) -> SlurmProfile:
    """Return the profile as a Slurm profile. Raises TypeError if it is of another kind."""
    from orchestrator.specs.profile import as_profile
    from orchestrator.specs.slurm_profile import SlurmProfile

    return as_profile(profile, SlurmProfile)

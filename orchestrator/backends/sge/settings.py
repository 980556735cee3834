"""The Grid Engine profile of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.specs.plan import LaunchPlan
    from orchestrator.specs.sge_profile import SgeProfile


def settings_of(launch: LaunchPlan) -> SgeProfile:
    """Return the profile as a Grid Engine profile. Raises TypeError if it is of another kind."""
    from orchestrator.specs.profile import as_profile
    from orchestrator.specs.sge_profile import SgeProfile

    return as_profile(launch.profile, SgeProfile)

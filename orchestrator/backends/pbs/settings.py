"""The PBS profile of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.specs.pbs_profile import PbsProfile
    from orchestrator.specs.plan import LaunchPlan


def settings_of(launch: LaunchPlan) -> PbsProfile:
    """Return the profile as a PBS profile. Raises TypeError if it is of another kind."""
    from orchestrator.specs.pbs_profile import PbsProfile
    from orchestrator.specs.profile import as_profile

    return as_profile(launch.profile, PbsProfile)

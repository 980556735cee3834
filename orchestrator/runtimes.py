"""The argv that enters a runtime; pure."""

from __future__ import annotations

from orchestrator.errors import UsageError
from orchestrator.profile import AnyProfile
from orchestrator.spec import Job


def enter(job: Job, profile: AnyProfile) -> tuple[str, ...]:
    """The argv in front of the launcher's own; empty where it starts directly on the node.

    UsageError for the runtimes that this version of orch can't enter yet.
    """
    if profile.runtime == "none":
        return ()
    image = job.container.image if job.container else "an image"
    raise UsageError(
        f"profile {profile.name} runs {image} in {profile.runtime}, which this version of orch can't do yet",
        "set runtime: none in the profile, and install torch on the nodes",
    )

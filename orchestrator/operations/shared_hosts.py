"""orch queue: all users' runs on the hosts of a profile, running or waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.backends import backend_of
from orchestrator.errors import UsageError
from orchestrator.runs.shared_hosts import SharedRun, runs_on
from orchestrator.specs.kinds import kind_named

if TYPE_CHECKING:
    from orchestrator.specs.profiles import AnyProfile


def shared_runs(profile: AnyProfile) -> tuple[list[SharedRun], list[str]]:
    """Return the runs on the hosts of an ssh profile (and on its spare hosts), and an error message for each host
    that did not answer.
    """
    if profile.kind != "ssh":
        hint = (
            "use the scheduler's own command to see its queue"
            if kind_named(profile.kind).scheduler
            else "name an ssh profile"
        )
        raise UsageError(f"orch queue needs an ssh profile, and this one is of kind {profile.kind}", hint)
    found = backend_of(profile).holdings(profile)
    problems = [str(each["problem"]) for each in found if "problem" in each]
    return runs_on({each["host"]: each for each in found if "problem" not in each}), problems

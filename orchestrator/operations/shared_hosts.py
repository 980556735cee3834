"""orch queue: everybody's runs on the hosts of a profile, those that run and those that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.errors import UsageError
from orchestrator.operations.doctor import holdings
from orchestrator.runs.shared_hosts import SharedRun, runs_on

if TYPE_CHECKING:
    from orchestrator.specs.profile import AnyProfile


def shared_runs(profile: AnyProfile) -> tuple[list[SharedRun], list[str]]:
    """Return the runs on an ssh profile's hosts, spares included, and what is in the way of asking some."""
    if profile.kind != "ssh":
        hint = "squeue shows Slurm's queue" if profile.kind == "slurm" else "name an ssh profile"
        raise UsageError(f"orch queue needs an ssh profile, and this one is of kind {profile.kind}", hint)
    found = holdings(profile)
    problems = [str(each["problem"]) for each in found if "problem" in each]
    return runs_on({each["host"]: each for each in found if "problem" not in each}), problems

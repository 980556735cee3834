"""Decides which environment variables of the shell may affect Slurm's programs, and which options they may set. This
module has no side effects.

A site's modules set such variables. The profile takes precedence, so variables may set only options that the profile
leaves empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from orchestrator.backends.slurm.settings import settings_of

if TYPE_CHECKING:  # commands that only read runs must not wait for pydantic
    from orchestrator.backends.batch.scheduler import ByShell
    from orchestrator.specs.plan import LaunchPlan

FILLS: Final = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_QOS": "qos",
    "SBATCH_PARTITION": "partition",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_WCKEY": "wckey",
}
"""The variables that may set an option of a job, if its profile does not set the option."""
FIELDS: Final = ("account", "qos", "partition")  # the others belong to a profile's `sbatch:`
PRINT_FILLS: Final = ("sh", "-c", "env | grep ^SBATCH_ || :")


def fills_in(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may set options; empty inside a Slurm job, because these variables then describe
    that job.
    """
    if "SLURM_JOB_ID" in environ:
        return {}
    return {name: value for name in FILLS if (value := environ.get(name, "").strip()) and value.isprintable()}


def filled(launch: LaunchPlan, environ: Mapping[str, str]) -> tuple[LaunchPlan, ByShell]:
    """Return the plan, in which variables of the shell have set options that the profile leaves empty, and the names of
    these variables.
    """
    profile, used = settings_of(launch.profile), dict[str, Any]()
    fields: dict[str, Any] = {name: getattr(profile, name) for name in FIELDS}
    sbatch = dict(profile.sbatch)
    for variable, value in fills_in(environ).items():
        option = FILLS[variable]
        place = fields if option in FIELDS else sbatch
        if place.get(option) is None:
            place[option], used[option] = value, {"value": value, "by": variable}
    return replace(launch, profile=replace(profile, sbatch=sbatch, **fields)), used

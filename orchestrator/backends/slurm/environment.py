"""Decides which variables of the shell may change Slurm's programs, and which options they may set. Pure.

A site's modules set such variables. The profile takes precedence, so they may set only options that it leaves open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # commands that only read runs must not wait for pydantic
    from orchestrator.backends.batch.scheduler import ByShell
    from orchestrator.specs.plan import LaunchPlan

STRANGE: Final = (
    "SBATCH_", "SLURM_", "SLURMD_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SCONTROL_", "SACCT_", "SCANCEL_",
)  # fmt: skip
"""The prefixes of the variables that Slurm's programs read as options."""
NEEDED: Final = ("SLURM_CONF", "SLURM_JWT", "SLURM_SACK_KEY", "SLURM_SACK_JWKS")
"""The variables with such a prefix that name the cluster and authenticate the user."""
FILLS: Final = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_QOS": "qos",
    "SBATCH_PARTITION": "partition",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_WCKEY": "wckey",
}
"""The options that a variable may set for a job whose profile does not name them."""
FIELDS: Final = ("account", "qos", "partition")  # the others belong to a profile's `sbatch:`
_HIDING: Final = (
    f"for orch_each in $(env | sed -n 's/^\\([A-Z_a-z0-9]*\\)=.*/\\1/p'); do case $orch_each in {'|'.join(NEEDED)}) ;; "
    f'{"|".join(f"{prefix}*" for prefix in STRANGE)}) unset $orch_each;; esac; done; exec "$@"'
)
PRINT_FILLS: Final = ("sh", "-c", "env | grep ^SBATCH_ || :")


def hiding(argv: Sequence[str]) -> list[str]:
    """Return the argv that runs a program of Slurm without the shell's variables that would change it."""
    return ["sh", "-c", _HIDING, argv[0], *argv]


def fills_in(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may set options. Inside a Slurm job they describe that job, so none is returned."""
    if "SLURM_JOB_ID" in environ:
        return {}
    return {name: value for name in FILLS if (value := environ.get(name, "").strip()) and value.isprintable()}


def filled(launch: LaunchPlan, environ: Mapping[str, str]) -> tuple[LaunchPlan, ByShell]:
    """Return the plan with the options that the shell sets, and the variable of each. The profile leaves these open."""
    profile: dict[str, Any] = dict(launch.profile)
    sbatch = dict(profile.get("sbatch") or {})
    used: ByShell = {}
    for variable, value in fills_in(environ).items():
        option = FILLS[variable]
        place = profile if option in FIELDS else sbatch
        if place.get(option) is None:
            place[option], used[option] = value, {"value": value, "by": variable}
    return replace(launch, profile={**profile, "sbatch": sbatch}), used

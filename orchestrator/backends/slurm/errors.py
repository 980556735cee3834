"""Turns the error message of an sbatch that refused a job into a sentence that names the field to change. This module
has no side effects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.backends.slurm.parse import is_unreachable
from orchestrator.errors import BackendError

if TYPE_CHECKING:
    from orchestrator.specs.slurm_profile import SlurmProfile

# (words of sbatch, their meaning, the hint; {field} is a field of the profile)
REFUSALS: Final = (
    ("Invalid partition name", "Slurm has no {partition}",
     "sinfo lists the partitions; set `partition` in the profile"),
    ("Invalid account", "Slurm has no {account} for you, or not in this partition",
     "sacctmgr show associations user=$USER lists your accounts; set `account` in the profile"),
    ("Invalid qos", "Slurm has no {qos} for you",
     "sacctmgr show qos lists all of them; set `qos` in the profile"),
    ("Requested time limit is invalid", "the time limit of {time} is longer than Slurm allows",
     "sinfo -o '%P %l' shows the limit of each partition; lower `time` in the profile"),
    ("Node count specification invalid", "Slurm can't give the job {counted}",
     "sinfo -o '%P %D' shows the number of nodes in each partition; lower `nodes` in the profile"),
    ("Requested node configuration is not available",
     "the cluster does not have {counted} with the resources that the profile requests ({asked})",
     "sinfo -N -o '%N %c %m %G' shows what each node has; without `cpus_per_task`, orch requests one core per rank"),
    ("More processors requested than permitted", "the profile requests more cores than the job may have ({asked})",
     "lower `cpus_per_task` or `nodes` in the profile"),
    ("doesn't allow an argument", "this cluster's sbatch is too old for the value of an option in the profile: {said}",
     "leave that value out of `sbatch` in the profile"),
    ("unrecognized option", "this cluster's sbatch lacks an option of the profile: {said}",
     "sbatch --help lists its options; leave that option out of `sbatch` in the profile"),
    ("Invalid generic resource", "Slurm does not know the generic resource (gres) that the profile requests ({asked})",
     "sinfo -o '%N %G' lists the generic resources of each node"),
    ("Invalid feature specification", "no node has the feature '{constraint}'",
     "sinfo -o '%N %f' lists the features of each node"),
    ("Invalid node name", "the profile names a node that Slurm does not know", "sinfo -N lists the nodes"),
    ("Invalid job array specification", "the sweep has more points than Slurm takes as one array",
     "scontrol show config shows the limit as MaxArraySize; sweep over fewer values"),
    ("Invalid wckey", "this cluster requires a wckey for each job", "add `sbatch: {{wckey: NAME}}` to the profile"),
    ("Job violates accounting/QOS policy", "a limit of your account or qos forbids this job: {said}",
     "sacctmgr show associations user=$USER and sacctmgr show qos show the limits"),
    ("Munge", "munge, which proves to Slurm who you are, does not answer on {where}: {said}",
     "ask the cluster's administrator to start munged on that machine"),
    ("Protocol authentication error", "Slurm could not authenticate you: {said}",
     "munge on {where} and on the controller must have the same key, and their clocks must agree"),
)  # fmt: skip


def refusal(said: str, settings: SlurmProfile, time_limit: int | None, where: str = "this machine") -> BackendError:
    """Return the error for the output of sbatch. If the message is unknown, the error is the last line of the
    output.
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("Try ")]  # sbatch prints it after an unknown option
    last = (lines or ["it did not say why"])[-1].removeprefix("sbatch: ").removeprefix("error: ")
    asked = ", ".join(
        f"{name} {f'{value / 2**30:.4g} GiB' if name == 'mem' else value}"
        for name in ("gres", "gpus_per_node", "cpus_per_task", "mem", "constraint")
        if (value := getattr(settings, name)) is not None
    )
    counted = "a node" if settings.nodes_of_job == 1 else f"{settings.nodes_of_job} nodes"
    given = {name: getattr(settings, name) for name in ("partition", "account", "qos")}
    named = {name: f"{name} '{value}'" if value else f"default {name}" for name, value in given.items()}
    facts = {**vars(settings), **named, "counted": counted, "said": last, "where": where,
             "asked": asked or "one core per rank",
             "time": f"{time_limit // 60} min" if time_limit else "none"}  # fmt: skip
    for words, meaning, hint in REFUSALS:
        if words.lower() in said.lower():
            own = "" if "{said}" in meaning else f" (sbatch: {last})"
            return BackendError(f"{meaning.format(**facts)}{own}", hint.format(**facts))
    if is_unreachable(said):
        return BackendError(
            f"Slurm's controller can't be reached: {last}",
            "scontrol ping shows whether it is up; no job was queued under this run's name",
            transient=True,
        )
    return BackendError(
        f"sbatch refused the job: {last}", "orch submit --dry-run shows the script that sbatch was given"
    )

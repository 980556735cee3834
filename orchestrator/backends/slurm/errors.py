"""Turns the error message of an sbatch that refused a job into a sentence that names the field to change. This module
has no side effects.
"""

from __future__ import annotations

from typing import Final

from orchestrator.backends.slurm.parse import is_unreachable
from orchestrator.backends.slurm.settings import SlurmSettings
from orchestrator.errors import BackendError

# (words of sbatch, their meaning, the hint; {field} is a field of the profile)
REFUSALS: Final = (
    ("Invalid partition name", "Slurm has no partition '{partition}'", "sinfo lists the partitions; set partition:"),
    ("Invalid account", "Slurm has no account '{account}' for you, or not in this partition",
     "sacctmgr show associations user=$USER lists yours; set account:"),
    ("Invalid qos", "Slurm has no qos '{qos}' for you", "sacctmgr show qos lists them; set qos:"),
    ("Requested time limit is invalid", "the time limit of {time} is more than Slurm gives here",
     "sinfo -o '%P %l' shows the limit of each partition; set time:"),
    ("Node count specification invalid", "Slurm can't give {counted} here",
     "sinfo -o '%P %D' shows how many each partition has; set nodes:"),
    ("Requested node configuration is not available",
     "the cluster does not have {counted} with what the profile asks for ({asked})",
     "sinfo -N -o '%N %c %m %G' shows what each has; without cpus_per_task orch requests one core per rank"),
    ("More processors requested than permitted", "the profile asks for more cores than it may have ({asked})",
     "set cpus_per_task: or nodes:"),
    ("doesn't allow an argument", "this cluster's sbatch is older than an option of the profile: {said}",
     "leave that value out of sbatch: in the profile"),
    ("unrecognized option", "this cluster's sbatch lacks an option of the profile: {said}",
     "sbatch --help lists its options; leave that option out of sbatch: in the profile"),
    ("Invalid generic resource", "Slurm knows no such gres here ({asked})", "sinfo -o '%N %G' lists them"),
    ("Invalid feature specification", "no node has the feature '{constraint}'", "sinfo -o '%N %f' lists them"),
    ("Invalid node name", "the profile names a node that Slurm does not know", "sinfo -N lists them"),
    ("Invalid job array specification", "the sweep has more points than Slurm takes as one array",
     "scontrol show config shows that as MaxArraySize; sweep over fewer values"),
    ("Invalid wckey", "this cluster wants a wckey", "add sbatch: {{wckey: NAME}} to the profile"),
    ("Job violates accounting/QOS policy", "a limit of your account or qos forbids this job: {said}",
     "sacctmgr show associations user=$USER and sacctmgr show qos show the limits"),
    ("Munge", "munge does not answer on {where}, so Slurm does not believe who you are: {said}",
     "ask the cluster's administrator to start munged there"),
    ("Protocol authentication error", "Slurm does not believe who you are: {said}",
     "munge on {where} and on the controller must have the same key and clocks that agree"),
)  # fmt: skip


def refusal(said: str, settings: SlurmSettings, time_limit: int | None, where: str = "this machine") -> BackendError:
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
    facts = {**vars(settings), "counted": counted, "said": last, "where": where, "asked": asked or "one core per rank",
             "time": f"{time_limit // 60} min" if time_limit else "none"}  # fmt: skip
    for words, meaning, hint in REFUSALS:
        if words.lower() in said.lower():
            own = "" if "{said}" in meaning else f" (sbatch: {last})"
            return BackendError(f"{meaning.format(**facts)}{own}", hint.format(**facts))
    if is_unreachable(said):
        return BackendError(
            f"Slurm's controller can't be reached: {last}",
            "scontrol ping says whether it is up; nothing was queued under this run's name",
            transient=True,
        )
    return BackendError(f"sbatch refused the job: {last}", "orch submit --dry-run shows the script that it was given")

"""The commands of PBS, each with a parser for its output."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from orchestrator.backends.batch.qsub import Qsub
from orchestrator.backends.batch.scheduler import Array, Job, Query, with_option
from orchestrator.backends.pbs import parse

if TYPE_CHECKING:  # `orch status` must not wait for pydantic
    from orchestrator.backends.base import Check
    from orchestrator.backends.batch.scheduler import Trial
    from orchestrator.backends.batch.site import Site
    from orchestrator.runs.job_use import JobUse
    from orchestrator.specs.pbs_profile import PbsProfile
    from orchestrator.specs.plan import LaunchPlan

# qstat -f has no option for the jobs of one user, and without a job's number it prints the jobs of all users.
MINE: Final = 'ids=$(qselect -u "$(id -un)") || exit; [ -z "$ids" ] || exec qstat -t -f -F json $ids'
# qdel has no option for waiting subjobs alone: it also ends those that run.
CANCEL_WAITING: Final = (
    'qselect -T -s QHW -u "$(id -un)" | while read -r id; do case $id in "$1".*|"$1["*"]"*) qdel "$id";; esac; done'
)
# A user may rerun a job only if the site allows that to everybody, so a refusal is written into the job's log.
AGAIN: Final = ('qrerun "$PBS_JOBID" || echo "orch: this PBS lets only its operators start a job again (qrerun)"',)
REFUSALS: Final = (
    ("Unknown queue", "PBS has no queue '{queue}'", "qstat -Q lists the queues; set `queue` in the profile"),
    ("Invalid Account", "PBS does not accept the account '{account}'",
     "ask the cluster's administrator for one, and set `account` in the profile"),
    ("Unknown resource", "PBS does not know a resource that the profile requests",
     "ask the cluster's administrator which resources exist, and change `select` in the profile"),
    ("violates queue and/or server resource limits", "a limit of the queue or the server forbids this job",
     "qstat -Qf QUEUE shows the queue's limits; change `nodes`, `time` or `queue` in the profile"),
    ("would exceed", "a limit on your own jobs forbids this job", "qstat -Qf QUEUE shows the queue's limits"),
    ("not allowed", "you may not use queue '{queue}'", "qstat -Q lists the queues; set `queue` in the profile"),
)  # fmt: skip


class Pbs(Qsub, kind="pbs"):
    """OpenPBS 19 and later, and PBS Professional 14 and later, whose qstat prints JSON."""

    programs = ("qsub", "qstat", "qdel", "qselect")
    end_seconds = 60.0  # the server's kill_delay, 10 s by default, and a site's epilogue

    mark = "#PBS"
    number = "$(expr \"$PBS_JOBID\" : '\\([0-9]*\\)')"
    task = "$PBS_ARRAY_INDEX"
    again = AGAIN
    up_hint = "qstat -B shows whether the server is up; no job was queued under this run's name"
    refusals = REFUSALS
    accepted = r"(\d+)(?:\[\])?\.\S+"  # 17.server or 17[].server
    unreachable, unanswered = parse.UNREACHABLE, parse.UNANSWERED

    # -- queries

    def queue(self, user: int) -> Query[Sequence[Job]]:
        return Query(("sh", "-c", MINE, "qstat"), parse.parse_qstat)

    def details(self, job_id: str) -> Query[Job | None]:
        return Query(_qstat(job_id), lambda text: next(iter(parse.parse_qstat(text)), None))

    def accounting(self, job_id: str) -> Query[Sequence[Job]]:
        return Query(_qstat(job_id), parse.parse_qstat)  # the server itself keeps the jobs that have ended

    def use(self, user: int, job_id: str, name: str) -> Query[JobUse | None]:
        return Query(_qstat(job_id), partial(parse.parse_use, name=name))

    def lost(self, job_id: str, name: str) -> Job:
        return parse.JobLine(job_id, "forgotten", name)

    # -- what an error message means

    def is_unknown(self, said: str) -> bool:
        return "Unknown Job Id" in said

    def is_over(self, said: str) -> bool:
        return self.is_unknown(said) or "has finished" in said or "already exiting" in said.lower()

    # -- commands

    def requests(self, launch: LaunchPlan, array: Array | None) -> list[tuple[str, object]]:
        # Each node is one chunk on a host of its own.
        profile = settings_of(launch)
        select = ":".join([str(launch.nnodes), *(f"{name}={value}" for name, value in chunk_of(launch).items())])
        return [
            *self.always,
            ("-q", profile.queue),
            ("-A", profile.account),
            ("-l", f"select={select}"),
            ("-l", f"place={profile.place or 'scatter'}"),
            ("-l", launch.time_limit and f"walltime={launch.time_limit}"),
            ("-J", array and f"0-{array.count - 1}{f'%{array.parallel}' if array.parallel else ''}"),
        ]

    def cancel(self, job_id: str, signal: str = "") -> Sequence[str]:
        return () if signal else ("qdel", parse.own_number(job_id))

    def cancel_waiting(self, job_id: str) -> Sequence[str]:
        return ("sh", "-c", CANCEL_WAITING, "qselect", job_id)

    def after(self, launch: LaunchPlan, job_ids: Sequence[str], *, succeeds: bool) -> LaunchPlan | None:
        condition = ":".join(["depend=afterok" if succeeds else "depend=afterany", *map(parse.own_number, job_ids)])
        return with_option(launch, "qsub", "W", (condition,))

    # -- advice

    def doctor(self, trial: Trial) -> list[Check]:
        from orchestrator.backends.pbs import cluster

        return cluster.examine(trial, chunk_of(trial.launch))

    def holdings(self, site: Site) -> list[dict[str, Any]]:
        from orchestrator.backends.pbs import cluster

        return [row.to_json() for row in cluster.queues(site)]


def _qstat(job_id: str) -> Sequence[str]:
    return ("qstat", "-x", "-f", "-F", "json", parse.own_number(job_id))


def chunk_of(launch: LaunchPlan) -> dict[str, Any]:
    """Return the resources that a plan requests on each node."""
    profile, resources = settings_of(launch), launch.job.resources
    counts = [task.nproc for task in launch.tasks if task.nproc is not None]
    mem = resources.mem or profile.mem
    chunk = {
        "ncpus": resources.cpus or profile.ncpus or max(counts, default=1),
        "ngpus": profile.ngpus and (resources.gpus or profile.ngpus),
        "mem": mem and f"{-(-mem // 2**20)}mb",
        **profile.select,
    }
    return {name: value for name, value in chunk.items() if value}


def settings_of(launch: LaunchPlan) -> PbsProfile:
    """Return the plan's profile as a PBS profile."""
    from orchestrator.specs.pbs_profile import PbsProfile
    from orchestrator.specs.profile import as_profile

    return as_profile(launch.profile, PbsProfile)

"""The commands of Grid Engine, each with a parser for its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from orchestrator.backends.base import CheckResult, Level
from orchestrator.backends.batch.qsub import Qsub
from orchestrator.backends.batch.scheduler import Array, Job, Query, with_option
from orchestrator.backends.sge import parse

if TYPE_CHECKING:  # `orch status` must not wait for pydantic
    from orchestrator.backends.base import Check
    from orchestrator.backends.batch.scheduler import Trial
    from orchestrator.backends.batch.site import Site
    from orchestrator.runs.job_use import JobUse
    from orchestrator.specs.plan import LaunchPlan
    from orchestrator.specs.sge_profile import SgeProfile

MINE: Final = 'exec qstat -u "$(id -un)" "$@"'  # qstat knows users by their names only
# qdel has no option for waiting tasks alone: it also ends those that run.
CANCEL_WAITING: Final = (
    'qstat -u "$(id -un)" -s p -g d | awk -v job="$1" \'$1 == job { print NF > 8 ? $NF : "" }\' | '
    'while read -r task; do qdel "$1" ${task:+-t "$task"}; done'
)
REFUSALS: Final = (
    ("unknown queue", "Grid Engine has no queue '{queue}'", "qconf -sql lists the queues; set `queue` in the profile"),
    ("parallel environment", "Grid Engine has no parallel environment '{pe}'",
     "qconf -spl lists the parallel environments; set `pe` in the profile"),
    ("project", "Grid Engine has no project '{project}' for you",
     "qconf -sprjl lists the projects; set `project` in the profile"),
    ("unknown resource", "Grid Engine does not know a resource that the profile requests",
     "qconf -sc lists the resources; change `request` in the profile"),
)  # fmt: skip


class GridEngine(Qsub, kind="sge"):
    """Describes Son of Grid Engine 8.1, and other versions of Grid Engine since Sun's 6.2."""

    programs = ("qsub", "qstat", "qdel")
    door = "submit host"
    end_seconds = 90.0  # a queue's notify, 60 s by default, and some more
    accounting_lag = 30.0  # the server writes its records every 15 s by default, and the agents end before the job

    mark = "#$"
    number = "$JOB_ID"
    task = "$((SGE_TASK_ID - 1))"  # Grid Engine counts tasks from 1
    always = (("-notify", True), ("-j", "y"))
    places: ClassVar[Mapping[str, str]] = {"-q": "queue", "-P": "project"}
    again = (f"exit {parse.RESCHEDULED}",)
    command = ("qsub", "-terse")
    up_hint = "qconf -sss shows whether the server is up; no job was queued under this run's name"
    refusals = REFUSALS
    accepted = r"(\d+)(?:\.\d+-\d+:\d+)?"  # 17 or 17.1-3:1
    unreachable, unanswered = parse.UNREACHABLE, parse.UNANSWERED

    # -- queries

    def queue(self, user: int) -> Query[Sequence[Job]]:
        return Query(("sh", "-c", MINE, "qstat", "-xml", "-g", "d"), parse.parse_qstat)

    def reason(self, job_id: str) -> Query[str]:
        return Query(("qstat", "-j", parse.own_number(job_id)[0]), parse.parse_reason)

    def accounting(self, job_id: str) -> Query[Sequence[Job]]:
        return Query(_qacct(job_id), parse.parse_qacct)

    def use(self, user: int, job_id: str, name: str) -> Query[JobUse | None]:
        return Query(_qacct(job_id), partial(parse.parse_use, name=name))

    def lost(self, job_id: str, name: str) -> Job:
        return parse.JobLine(job_id, "forgotten", parse.job_name(name))

    # -- what an error message means

    def is_unknown(self, said: str) -> bool:
        return "do not exist" in said or "does not exist" in said

    def is_over(self, said: str) -> bool:
        return self.is_unknown(said)

    # -- commands

    def job_name(self, name: str) -> str:
        return parse.job_name(name)

    def requests(self, launch: LaunchPlan, array: Array | None) -> list[tuple[str, object]]:
        profile = settings_of(launch)
        slots = slots_of(launch)
        limit = {} if launch.time_limit is None else {"h_rt": launch.time_limit}
        asked = ",".join(f"{name}={value}" for name, value in {**profile.request, **limit}.items())
        return [
            *self.always,
            ("-pe", profile.pe and (profile.pe, slots * launch.nnodes)),
            ("-q", profile.queue),
            ("-P", profile.project),
            ("-l", asked),
            ("-t", array and f"1-{array.count}"),
            ("-tc", array and array.parallel),
        ]

    def cancel(self, job_id: str, signal: str = "") -> Sequence[str]:
        number, task = parse.own_number(job_id)
        return () if signal else ("qdel", number, *(("-t", task) if task else ()))

    def cancel_waiting(self, job_id: str) -> Sequence[str]:
        return ("sh", "-c", CANCEL_WAITING, "qstat", job_id)

    def after(self, launch: LaunchPlan, job_ids: Sequence[str], *, succeeds: bool) -> LaunchPlan | None:
        if succeeds:  # Grid Engine has no such condition
            return None
        numbers = dict.fromkeys(parse.own_number(each)[0].removesuffix("[]") for each in job_ids)
        return with_option(launch, "qsub", "hold_jid", list(numbers))

    # -- what a plan asks for

    def would_take(self, launch: LaunchPlan, site: Site) -> CheckResult:
        """Check with `qsub -w v` whether Grid Engine would accept the plan. No job is queued."""
        answer = site.call("qsub", "-w", "v", *self.options(launch), stdin=self.script(launch))
        said = answer.err.strip() or answer.out.strip()
        if answer.code == 0 and "found suitable queue" in answer.out + answer.err:
            return CheckResult(Level.OK, said.splitlines()[-1])
        error = self.refusal(said, launch, site)
        return CheckResult(Level.FAIL, error.message, error.hint)

    def doctor(self, trial: Trial) -> list[Check]:
        from orchestrator.backends.sge import cluster

        return cluster.examine(trial, slots_of(trial.launch))

    def holdings(self, site: Site) -> list[dict[str, Any]]:
        from orchestrator.backends.sge import cluster

        return [row.to_json() for row in cluster.queues(site)]


def _qacct(job_id: str) -> Sequence[str]:
    number, task = parse.own_number(job_id)
    return ("qacct", "-j", number, *(("-t", task) if task else ()))


def slots_of(launch: LaunchPlan) -> int:
    """Return the number of slots that a plan requests on each node."""
    counts = [task.nproc for task in launch.tasks if task.nproc is not None]
    return launch.job.resources.cpus or settings_of(launch).slots or max(counts, default=1)


def settings_of(launch: LaunchPlan) -> SgeProfile:
    """Return the plan's profile as a Grid Engine profile."""
    from orchestrator.specs.profile import as_profile
    from orchestrator.specs.sge_profile import SgeProfile

    return as_profile(launch.profile, SgeProfile)

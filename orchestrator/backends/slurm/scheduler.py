"""The commands of Slurm, each with a parser for its output."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from orchestrator.backends.base import CheckResult, Level
from orchestrator.backends.batch.scheduler import (
    ByShell,
    Job,
    Order,
    Put,
    Query,
    Scheduler,
    Trial,
    in_words,
    with_option,
)
from orchestrator.backends.slurm import parse
from orchestrator.backends.slurm.environment import PRINT_FILLS, filled
from orchestrator.backends.slurm.settings import settings_of
from orchestrator.errors import BackendError, UsageError

if TYPE_CHECKING:  # `orch status` must not wait for pydantic
    from orchestrator.backends.base import Check
    from orchestrator.backends.batch.site import Site
    from orchestrator.runs.job_use import JobUse
    from orchestrator.runs.record import RunRecord
    from orchestrator.specs.plan import LaunchPlan
    from orchestrator.specs.profiles import AnyProfile
    from orchestrator.transport.machine import Output

AFTER_REQUEUE: Final = 5  # seconds
MAY_DIFFER: Final = ("job_name", "comment", "setup", "teardown")  # parameters that tasks of an array need not share


class Slurm(Scheduler, kind="slurm"):
    """Describes Slurm 20.02 and later. Only formats that are the same in all these versions are used."""

    programs = ("sbatch", "srun", "squeue", "scancel")
    needs_python = ("submitit", 3, 10)
    plain: ClassVar[Mapping[str, str]] = {"SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"}
    chatter = ("submitit INFO",)
    shell = PRINT_FILLS
    looks_on_nodes = True
    end_seconds = 40.0  # KillWait, 30 s by default, and some more

    # -- queries

    def queue(self, user: int) -> Query[Sequence[Job]]:
        words = ("--noheader", "--states=all", "--array", f"--user={user}", f"--format={parse.SQUEUE_FORMAT}")
        return Query(("squeue", *words), parse.parse_squeue)

    def details(self, job_id: str) -> Query[Job | None]:
        return Query(("scontrol", "show", "job", "-o", job_id), parse.parse_scontrol)

    def accounting(self, job_id: str) -> Query[Sequence[Job]]:
        return Query(("sacct", "-n", "-X", "-P", "-j", job_id, "-o", parse.SACCT_FIELDS), parse.parse_sacct)

    def use(self, user: int, job_id: str, name: str) -> Query[JobUse | None]:
        words = ("-n", "-P", "-u", str(user), "-j", job_id, "-o", parse.USE_FIELDS)
        return Query(("sacct", *words), partial(parse.parse_use, name=name))

    def ping(self) -> Query[str]:
        # squeue itself tries for a minute and a half while no controller is up.
        return Query(("scontrol", "ping"), parse.controller_trouble)

    def lost(self, job_id: str, name: str) -> Job:
        return parse.JobLine(job_id, parse.FORGOTTEN, name)

    # -- what an error message means

    def is_unknown(self, said: str) -> bool:
        return parse.UNKNOWN.search(said) is not None

    def is_unreachable(self, said: str) -> bool:
        return parse.is_unreachable(said)

    def is_unanswered(self, said: str) -> bool:
        return parse.is_unanswered(said)

    def is_over(self, said: str) -> bool:
        # About a job that has ended, scancel prints nothing.
        return not said.strip() or self.is_unknown(said) or "already completing" in said

    def refusal(self, said: str, launch: LaunchPlan, site: Site) -> BackendError:
        from orchestrator.backends.slurm import partitions

        return partitions.refused(said, site, launch)

    # -- commands

    def submit(self, order: Order, put: Put, call: Callable[[Sequence[str]], Output]) -> str:
        from orchestrator.backends.slurm import submission

        return submission.submit(order, put, call)

    def script(self, launch: LaunchPlan) -> str:
        from orchestrator.backends.slurm import submission

        return submission.script(Order(launch))

    def cancel(self, job_id: str, signal: str = "") -> Sequence[str]:
        return ("scancel", *([f"--signal={signal}"] if signal else []), job_id)

    def cancel_waiting(self, job_id: str) -> Sequence[str]:
        return ("scancel", "--state=PENDING", job_id)

    def hasten(self, job: Job) -> Sequence[str] | None:
        # Slurm holds a requeued job back for two minutes, to be sure that its last start has ended. A node refuses a
        # start in the second in which it ended the start before, and Slurm then ends the job for good.
        if parse.wait_seconds(job.start, time.time()) <= 2 * AFTER_REQUEUE:
            return None
        return ("scontrol", "update", f"jobid={job.job_id}", f"starttime=now+{AFTER_REQUEUE}")

    def step(self, job_id: str, node: int, host: str, argv: Sequence[str], *, terminal: bool) -> list[str]:
        return self.facts.step(host, job_id, argv, terminal=terminal)

    def after(self, launch: LaunchPlan, job_ids: Sequence[str], *, succeeds: bool) -> LaunchPlan:
        condition = ":".join(["afterok" if succeeds else "afterany", *(each.removesuffix("[]") for each in job_ids)])
        return with_option(launch, "sbatch", "dependency", (condition,))

    # -- what a plan asks for

    def asked(self, launch: LaunchPlan) -> Mapping[str, Any]:
        from orchestrator.backends.slurm import script

        return {name: value for name, value in script.parameters(launch).items() if name not in MAY_DIFFER}

    def filled(self, launch: LaunchPlan, environ: Mapping[str, str]) -> tuple[LaunchPlan, ByShell]:
        return filled(launch, environ)

    def completed(self, launch: LaunchPlan, site: Callable[[], Site]) -> LaunchPlan:
        """Return the plan with the number of cores for its GPUs, if neither profile nor job sets it and Slurm knows
        the number per GPU.
        """
        from orchestrator.backends.slurm import partitions, script

        if not script.leaves_cores_open(launch.profile, launch.job):
            return launch
        return partitions.with_share_of_cores(launch, site())

    def check_folder(self, folder: str) -> None:
        """Raise UsageError if sbatch would interpret the path of the runs' folder as a pattern."""
        if odd := next((sign for sign in "\\%" if sign in folder), None):
            hint = "set `workdir` in the profile to another folder"
            raise UsageError(f"Slurm expands '{odd}' in the path of a log, and {folder} contains this character", hint)

    def begins_later(self, profile: AnyProfile) -> bool:
        return "begin" in settings_of(profile).sbatch

    # -- advice

    def would_take(self, launch: LaunchPlan, site: Site) -> CheckResult:
        """Check with `sbatch --test-only` whether Slurm would accept the plan. No job is queued."""
        from orchestrator.backends.slurm import partitions

        return partitions.would_take(site, launch)

    def unsaid(self, record: RunRecord, by_shell: ByShell) -> str:
        from orchestrator.backends.slurm import script

        cores = (
            "neither the profile nor Slurm says how many cores go with a GPU, so each rank has one, or what Slurm "
            "gives by itself: set cpus_per_gpu to a node's cores divided by its GPUs"
        )
        is_open = script.leaves_cores_open(record.profile, record.job)
        return "; ".join(filter(None, [in_words(by_shell), cores if is_open else ""]))

    def excess(self, record: RunRecord, by_shell: ByShell, site: Site) -> str:
        from orchestrator.backends.slurm import partitions, script

        ranks = -(-(record.world_size or 0) // max(1, record.nnodes))
        asked = script.asked_of(record.profile, record.job, ranks)
        partition = asked.partition or by_shell.get("partition", {}).get("value")
        found = partitions.fits(replace(asked, partition=partition), partitions.partitions(site))
        return found.value if found.level is Level.FAIL else ""

    def doctor(self, trial: Trial) -> list[Check]:
        from orchestrator.backends.slurm import doctor

        return doctor.examine(trial)

    def holdings(self, site: Site) -> list[dict[str, Any]]:
        """List the cluster's partitions."""
        from orchestrator.backends.slurm import partitions

        return [row.to_json() for row in partitions.partitions(site)]

"""What both ways to a Slurm have in common: on its login node, and through one."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.backends.base import Backend, Check, CheckResult, Finding, Judge, Level, Sight
from orchestrator.backends.settings import SlurmSettings, profile_of
from orchestrator.backends.slurm import job
from orchestrator.backends.slurm.environment import filled, in_words
from orchestrator.errors import BackendError, UsageError
from orchestrator.runs.job_use import JobUse
from orchestrator.runs.store import RunDir, state_root

if TYPE_CHECKING:  # `orch status` must not wait for pydantic
    from orchestrator.backends.slurm.client import Client
    from orchestrator.backends.slurm.doctor import Folder
    from orchestrator.backends.slurm.partitions import Partition
    from orchestrator.runs.scheduler_status import SchedulerStatus
    from orchestrator.specs.plan import LaunchPlan
    from orchestrator.specs.profiles import AnyProfile
    from orchestrator.transport.machine import Machine


class SlurmScheduler(Backend):
    """Runs as Slurm jobs: what differs is where Slurm's programs are run, and where the run directory lies."""

    takes_sweeps: ClassVar[bool] = True

    @abstractmethod
    def client(self, settings: SlurmSettings) -> Client:
        """Return the Slurm of a profile."""

    @abstractmethod
    def runs_folder(self, settings: SlurmSettings, launch: LaunchPlan) -> Folder:
        """Return the folder of all runs, as sbatch's machine has it; BackendError where that is out of reach."""

    def check_python(self, settings: SlurmSettings, python: str, *, is_alone: bool = True) -> None:
        """Raise BackendError where what starts the agents can't, as sbatch's machine knows; here it is orch's."""

    @abstractmethod
    def cache_of(self, settings: SlurmSettings, workdir: str | None) -> tuple[Machine, str]:
        """Return the machine that has orch's folder of a profile, and that folder; UsageError, BackendError."""

    def client_of(self, run: RunDir) -> Client:
        """Return the Slurm that has the run's job."""
        return self.client(SlurmSettings.of(profile_of(run)))

    def look(self, run: RunDir, *, recorded: bool = False) -> Sight:
        """Return what Slurm reports of the run's job; all nodes' agents live or are gone as the job is."""
        number = job.job_id_of(run)
        if recorded:
            return Sight(job=number)
        status = self.scheduler_status(run)
        return Sight(status.alive(max(1, run.record().nnodes)), job=number, scheduler=status)

    @abstractmethod
    def scheduler_status(self, run: RunDir) -> SchedulerStatus:
        """Return what Slurm reports of the run's job. Raises nothing if Slurm can't be asked."""

    def used(self, run: RunDir) -> JobUse | None:
        """Ask sacct."""
        return job.used_by(self.client_of(run), run)

    def would_take(self, launch: LaunchPlan) -> CheckResult:
        """Ask `sbatch --test-only`; BackendError where there is no sbatch."""
        from orchestrator.backends.slurm.partitions import would_take  # noqa: PLC0415 (only this asks)

        client = self.client(SlurmSettings.of(launch.profile))
        client.need("sbatch")
        launch, _ = filled(launch, client.runner.environment())
        return would_take(client, self.script(launch), launch)

    def completed(self, launch: LaunchPlan, *, by_shell: bool = False) -> LaunchPlan:
        """Return the plan with a GPU's share of the cores, if nobody says how many go with a GPU and Slurm knows it.

        If sbatch would not take that, or Slurm can't be asked, the plan stays as it is.
        """
        launch = self._with_share_of_cores(launch)
        is_here = by_shell and not launch.profile.get("login")
        return filled(launch, os.environ)[0] if is_here else launch

    def _with_share_of_cores(self, launch: LaunchPlan) -> LaunchPlan:
        from orchestrator.backends.slurm.partitions import cores_per_gpu, partitions  # noqa: PLC0415 (as above)
        from orchestrator.backends.slurm.script import leaves_cores_open  # noqa: PLC0415 (as above)

        if not leaves_cores_open(launch.profile, launch.job):
            return launch
        try:
            client = self.client(SlurmSettings.of(launch.profile))
            settings = SlurmSettings.of(filled(launch, client.runner.environment())[0].profile)
            rows = partitions(client)
            shown = client.call("scontrol", "show", "partition", "-o", *_named(settings, rows)).out
            if (share := cores_per_gpu(settings, rows, shown)) is None:
                return launch
            fuller = replace(launch, profile={**launch.profile, "cpus_per_gpu": share})
            return fuller if self.would_take(fuller).level is not Level.FAIL else launch
        except BackendError:
            return launch

    def unsaid(self, run: RunDir) -> str:
        """Return that nobody knows how many cores go with the run's GPUs; empty where that is known."""
        from orchestrator.backends.slurm.script import leaves_cores_open  # noqa: PLC0415 (as above)

        record = run.record()
        given = job.given_by_shell(run)
        values = {option: each.get("value") for option, each in given.items()}
        said = in_words({option: str(each.get("by")) for option, each in given.items()}, values)
        if not leaves_cores_open(record.profile, record.job):
            return said
        return (f"{said}; " if said else "") + (
            "neither the profile nor Slurm says how many cores go with a GPU, so each rank has one, or what Slurm "
            "gives by itself: set cpus_per_gpu to a node's cores divided by its GPUs"
        )

    def excess(self, run: RunDir) -> str:
        """Return by how much a run exceeds its partition; empty where it does not, or Slurm can't be asked."""
        from orchestrator.backends.slurm.partitions import fits, partitions  # noqa: PLC0415 (as above)
        from orchestrator.backends.slurm.script import asked_of  # noqa: PLC0415 (as above)

        record = run.record()
        ranks = -(-(record.world_size or 0) // max(1, record.nnodes))
        asked = asked_of(record.profile, record.job, ranks)
        by_shell = job.given_by_shell(run).get("partition", {}).get("value")
        try:
            found = fits(replace(asked, partition=asked.partition or by_shell), partitions(self.client_of(run)))
        except BackendError:
            return ""
        return found.value if found.level is Level.FAIL else ""

    def waiting_for(self, runs: Sequence[RunDir], *, succeeds: bool) -> str | None:
        """Return a dependency as sbatch takes it; None where a run's job isn't known."""
        return job.dependency(self.client_of(runs[0]), runs, succeeds=succeeds)

    def doctor(self, profile: AnyProfile, *, on_node: bool) -> list[Check]:
        """Check what a submit would meet, and with `on_node` what a short job finds on a node."""
        from orchestrator.backends.slurm.doctor import Trial, examine, trial_plan  # noqa: PLC0415 (as above)

        place = self.place(RunDir(state_root() / "runs" / "doctor"), profile.workdir, profile.python)
        settings, launch = SlurmSettings.of(profile.model_dump(mode="json")), trial_plan(profile, place)
        python = launch.commands[0][0]
        trial = Trial(self.client(settings), launch, self.script, lambda: self.check_python(settings, python))
        return examine(settings, trial, lambda: self.runs_folder(settings, launch), on_node=on_node)

    def collect_garbage(self, profile: AnyProfile, judge: Judge, *, dry_run: bool) -> list[Finding]:
        """Remove what of the cache in orch's folder nothing has used for long; its jobs Slurm itself ends."""
        from orchestrator.backends.environments import tidy_cache  # noqa: PLC0415 (as above)

        machine, workdir = self.cache_of(SlurmSettings.of(profile.model_dump(mode="json")), profile.workdir)
        return [] if dry_run else tidy_cache(machine, workdir)

    def holdings(self, profile: AnyProfile) -> list[dict[str, Any]]:
        """List the cluster's partitions."""
        from orchestrator.backends.slurm.partitions import partitions  # noqa: PLC0415 (as above)

        return [row.to_json() for row in partitions(self.client(SlurmSettings.of(profile.model_dump(mode="json"))))]


def check_folder(folder: str) -> None:
    """Raise UsageError if sbatch would read the path of the runs' folder as a pattern."""
    if odd := next((sign for sign in "\\%" if sign in folder), None):
        hint = "set workdir: in the profile to another folder"
        raise UsageError(f"Slurm replaces '{odd}' in the path of a log, and {folder} has this character", hint)


def _named(settings: SlurmSettings, rows: Sequence[Partition]) -> list[str]:
    """Return the profile's partition as an argument of scontrol's, which shows all where there is none."""
    names = settings.partition.split(",") if settings.partition else [row.name for row in rows if row.is_default]
    return names[:1]

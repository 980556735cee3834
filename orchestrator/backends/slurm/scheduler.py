"""What both ways to a Slurm have in common: on its login node, and through one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.backends.base import Backend, Check, CheckResult, Scheduler
from orchestrator.backends.settings import SlurmSettings, profile_of
from orchestrator.backends.slurm import job
from orchestrator.runs.store import RunDir, state_root

if TYPE_CHECKING:  # `orch status` must not wait for pydantic
    from orchestrator.backends.slurm.client import Client
    from orchestrator.backends.slurm.doctor import Folder
    from orchestrator.specs.plan import LaunchPlan
    from orchestrator.specs.profile import AnyProfile


class SlurmScheduler(Backend, Scheduler):
    """Runs as Slurm jobs: what differs is where Slurm's programs are run, and where the run directory lies."""

    @abstractmethod
    def client(self, settings: SlurmSettings) -> Client:
        """Return the Slurm of a profile."""

    @abstractmethod
    def runs_folder(self, settings: SlurmSettings, launch: LaunchPlan) -> Folder:
        """Return the folder of all runs, as sbatch's machine has it; BackendError where that is out of reach."""

    def client_of(self, run: RunDir) -> Client:
        """Return the Slurm that has the run's job."""
        return self.client(SlurmSettings.of(profile_of(run)))

    def would_take(self, launch: LaunchPlan) -> CheckResult:
        """Ask `sbatch --test-only`; BackendError where there is no sbatch."""
        from orchestrator.backends.slurm.partitions import would_take  # noqa: PLC0415 (only this asks)

        settings = SlurmSettings.of(launch.profile)
        client = self.client(settings)
        client.need("sbatch")
        return would_take(client, self.script(launch), settings, launch.time_limit)

    def waiting_for(self, runs: Sequence[RunDir], *, succeeds: bool) -> str | None:
        """Return a dependency as sbatch takes it; None where a run's job isn't known."""
        return job.dependency(self.client_of(runs[0]), runs, succeeds=succeeds)

    def doctor(self, profile: AnyProfile, *, on_node: bool) -> list[Check]:
        """Check what a submit would meet, and with `on_node` what a short job finds on a node."""
        from orchestrator.backends.slurm.doctor import Trial, examine, trial_plan  # noqa: PLC0415 (as above)

        place = self.place(RunDir(state_root() / "runs" / "doctor"), profile.workdir, profile.python)
        settings, launch = SlurmSettings.of(profile.model_dump(mode="json")), trial_plan(profile, place)
        trial = Trial(self.client(settings), self.script(launch), launch.time_limit)
        return examine(settings, trial, lambda: self.runs_folder(settings, launch), on_node=on_node)

    def holdings(self, profile: AnyProfile) -> list[dict[str, Any]]:
        """List the cluster's partitions."""
        from orchestrator.backends.slurm.partitions import partitions  # noqa: PLC0415 (as above)

        return [row.to_json() for row in partitions(self.client(SlurmSettings.of(profile.model_dump(mode="json"))))]

"""The answers of a batch scheduler to questions about plans and runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.backends.base import Advice, CheckResult
from orchestrator.backends.batch import job
from orchestrator.errors import BackendError

if TYPE_CHECKING:
    from orchestrator.backends.batch.backend import Batch
    from orchestrator.runs.job_use import JobUse
    from orchestrator.runs.store import RunDir
    from orchestrator.specs.plan import LaunchPlan


class BatchAdvice(Advice):
    """Runs the scheduler's commands on the site of the plan or the run."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def completed(self, launch: LaunchPlan, *, by_shell: bool = False) -> LaunchPlan:
        with contextlib.suppress(BackendError):  # a scheduler that does not answer leaves the plan unchanged
            launch = self.batch.scheduler.completed(launch, lambda: self.batch.site(launch.profile))
        return self.batch.scheduler.filled(launch, os.environ)[0] if by_shell and not self.batch.is_remote else launch

    def script(self, launch: LaunchPlan) -> str:
        return self.batch.scheduler.script(launch)

    def would_take(self, launch: LaunchPlan) -> CheckResult:
        site = self.batch.site(launch.profile)
        site.need(self.batch.scheduler.programs[0])
        return self.batch.scheduler.would_take(self.batch.scheduler.filled(launch, site.environment())[0], site)

    def waiting_for(self, launch: LaunchPlan, runs: Sequence[RunDir], *, succeeds: bool) -> LaunchPlan | None:
        return job.after(self.batch.site_of(runs[0]), launch, runs, succeeds=succeeds)

    def check_alike(self, launches: Sequence[LaunchPlan]) -> None:
        from orchestrator.backends.batch.submission import check_alike

        check_alike(self.batch.scheduler, launches)

    def used(self, run: RunDir) -> JobUse | None:
        site = self.batch.site_of(run)
        ident = job.ident_of(run, site)
        return None if ident.job_id is None else site.used(ident.job_id, ident.name)

    def said(self, run: RunDir) -> str:
        said = job.told(run, self.batch.site_of(run), "said")
        return f"{self.batch.scheduler.programs[0]} says: {said}" if said else ""

    def unsaid(self, run: RunDir) -> str:
        return self.batch.scheduler.unsaid(run.record(), job.given_by_shell(run, self.batch.site_of(run)))

    def excess(self, run: RunDir) -> str:
        site = self.batch.site_of(run)
        try:
            return self.batch.scheduler.excess(run.record(), job.given_by_shell(run, site), site)
        except BackendError:
            return ""

"""The supervisor's thread for a run behind a login node. It copies files and records the scheduler's reports."""

from __future__ import annotations

from orchestrator.backends.batch import job
from orchestrator.backends.batch.site import Site
from orchestrator.backends.mirror.growing import update_all
from orchestrator.backends.mirror.watching import POLL_SECONDS, Follower, RunWatcher, Source, Update
from orchestrator.errors import BackendError
from orchestrator.outcome.scheduler import SchedulerStatus
from orchestrator.runs.store import RunDir
from orchestrator.transport.address import parse_address


def source_of(run: RunDir, site: Site) -> Source:
    """Return the login node as the source of all nodes' files. While the login node is unreachable, the run's result is
    not determined.
    """
    nodes = range(max(1, run.record().nnodes))
    return Source(parse_address(site.where).host, tuple(nodes), site.machine, is_vital=True)


def watch(run: RunDir, site: Site) -> RunWatcher:
    """Start the threads that copy the run's files. The `wait` of the returned watcher returns when the next copy from
    the login node is complete.
    """
    source = source_of(run, site)
    return RunWatcher(run, [LoginFollower(run, source, site)], lambda: [source])


class LoginFollower(Follower):
    """Copies the files of all nodes. A report of the scheduler is recorded only once all files that were written before
    the report have been copied.
    """

    def __init__(self, run: RunDir, source: Source, site: Site) -> None:
        self.run, self.source, self.site = run, source, site
        self.copies = source.copies(run, [0])
        self.status = SchedulerStatus("unknown")

    def update(self) -> Update:
        """Copy new files, then query the scheduler. If the scheduler's answer is new, copy again to get the last lines
        of the logs.

        So the recorded answer is always older than the last copy. In the other order, the job could have ended after
        the copy, and its last lines would be missing on this machine.
        """
        update_all(self.copies, self.source.session())  # first, because it notices sooner that the machine is silent
        if (said := job.scheduler_status(self.site, self.run)) != self.status:
            self.status = said
            update_all(self.copies, self.source.session())
        job.release_requeued(self.site, self.run)
        job.record_status(self.run, self.site.scheduler, self.status)
        return Update(self.copies[0].steps, POLL_SECONDS)

    def record_loss(self, error: BackendError) -> None:
        """Record that the scheduler can't be queried."""
        kind = self.site.scheduler
        self.status = SchedulerStatus("unknown", f"{kind.title} can't be asked: {error.message}")
        job.record_status(self.run, kind, self.status)

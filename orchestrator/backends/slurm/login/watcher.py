"""The supervisor's thread for a run behind a login node: it copies, asks Slurm, and records what that says."""

from __future__ import annotations

from orchestrator.backends.remote.mirror import POLL_SECONDS, Follower, RunWatcher, Source, Update
from orchestrator.backends.remote.transfer import update_all
from orchestrator.backends.slurm import job
from orchestrator.backends.slurm.client import Client
from orchestrator.backends.slurm.login.node import LoginNode
from orchestrator.backends.slurm.login.recorded_status import record_status
from orchestrator.errors import BackendError
from orchestrator.runs.scheduler_status import SchedulerStatus
from orchestrator.runs.store import RunDir


def source_of(run: RunDir, login: LoginNode) -> Source:
    """Return the login node as what has the parts of all nodes; nothing is concluded without it."""
    nodes = range(max(1, run.record().nnodes))
    return Source(login.address.host, tuple(nodes), login.session, is_vital=True)


def watch(run: RunDir, login: LoginNode, client: Client) -> RunWatcher:
    """Start the threads that copy what the run writes; their `wait` returns after the next look."""
    source = source_of(run, login)
    return RunWatcher(run, [LoginFollower(run, source, client)], lambda: [source])


class LoginFollower(Follower):
    """Copies what all nodes write, and asks Slurm. What Slurm says is recorded when all that it speaks of is here."""

    def __init__(self, run: RunDir, source: Source, client: Client) -> None:
        self.run, self.source, self.client = run, source, client
        self.copies = source.copies(run, [0])
        self.status = SchedulerStatus("unknown")

    def update(self) -> Update:
        """Copy what is new, then ask; of something new that Slurm says, once more, with the last words of its logs.

        What is recorded was said before the last copy: else a job may have ended since, with words that are not here.
        """
        update_all(self.copies, self.source.session())  # first: it knows sooner that nobody answers
        if (said := job.scheduler_status(self.client, self.run)) != self.status:
            self.status = said
            update_all(self.copies, self.source.session())
        job.release_requeued(self.client, self.run)
        record_status(self.run, self.status)
        return Update(self.copies[0].steps, POLL_SECONDS)

    def record_loss(self, error: BackendError) -> None:
        """Record that Slurm can't be asked."""
        self.status = SchedulerStatus("unknown", f"Slurm can't be asked: {error.message}")
        record_status(self.run, self.status)

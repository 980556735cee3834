"""The supervisor's threads for a run behind a login node: asking Slurm, copying; and the last look."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from orchestrator.backends import slurm_job as job
from orchestrator.backends.copies import Copy, sole_writer
from orchestrator.backends.hosts import remote_folder
from orchestrator.backends.sending import remote_checkpoints
from orchestrator.backends.watching import JOIN_SECONDS, LONGEST_PAUSE, Watching, bring_newest
from orchestrator.errors import BackendError
from orchestrator.opinion import Opinion
from orchestrator.store import RunDir

if TYPE_CHECKING:
    from orchestrator.backends.slurm_login import LoginBackend
    from orchestrator.session import Session

PAUSE_SECONDS: Final = 1.0


class LoginWatch(Watching):
    """The asking and the copying of one run; its `wait` returns after the next look."""

    def __init__(self, run: RunDir, backend: LoginBackend) -> None:
        super().__init__(run)
        self.backend = backend
        self.begin((self._follow,))

    def source(self) -> Session | None:
        """The login node."""
        return self.backend.session_of(self.run)

    def _follow(self) -> None:
        """Copy and ask, again and again. What Slurm says is recorded when all that it speaks of is here."""
        client, copies, pause = self.backend.client_of(self.run), _copies(self.run, [0]), PAUSE_SECONDS
        said = Opinion("unknown")
        while not self.ended.is_set():
            try:
                bring(copies, self.backend.session_of(self.run))  # first: it knows sooner that nobody answers
                before, said = said, job.opinion_of(client, self.run)
                if said != before:
                    bring(copies, self.backend.session_of(self.run))
                    said = job.opinion_of(client, self.run)  # with the last words of its logs, which are here now
                job.hurry(client, self.run)
                pause = PAUSE_SECONDS
            except BackendError as error:
                said = Opinion("unknown", f"Slurm can't be asked: {error.message}")
                pause = min(LONGEST_PAUSE, pause * 2)
            self.backend.record(self.run, said)
            self.changed.set()
            self.has(copies[0].steps)
            self.ended.wait(pause)


def _copies(run: RunDir, ranks: list[int] | None) -> list[Copy]:
    """A copy for each node's part of the run; all of them lie on the login node."""
    nodes = range((run.read("run.json") or {}).get("nnodes", 1))
    return [Copy(run, node, remote_folder(run), remote_checkpoints(run), ranks) for node in nodes]


def bring(copies: list[Copy], session: Session, *, only_logs: bool = False) -> None:
    """Bring all that is new."""
    for copy in copies:
        while copy.look(session, 0.0, only_logs=only_logs):
            pass


@contextlib.contextmanager
def log_watch(run: RunDir, backend: LoginBackend, ranks: list[int] | None) -> Iterator[None]:
    """While it lasts, the logs of these ranks are copied by this process; at least once."""
    ended = threading.Event()

    def follow() -> None:
        copies = _copies(run, ranks)
        while True:
            is_last = ended.is_set()
            with contextlib.suppress(BackendError):  # out of reach: the supervisor says so
                bring(copies, backend.session_of(run), only_logs=True)
            if is_last:
                return
            ended.wait(PAUSE_SECONDS)

    with sole_writer(run.path, "logs.lock"):
        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(JOIN_SECONDS)


def finish(run: RunDir, backend: LoginBackend) -> None:
    """Bring all logs, the results and the checkpoints of a run that has ended; then remove its folder there."""
    with sole_writer(run.path, "collect.lock"):
        if (run.path / "verdict.json").exists():
            return
        job.wait_for_end(backend.client_of(run), run)  # its batch shell outlives the agents by a moment
        session, copies = backend.session_of(run), _copies(run, None)
        bring(copies, session)
        bring_newest(run, session, remote_checkpoints(run), copies[0].steps)
        try:
            session.call("remove", run_dir=remote_folder(run), run_id=run.run_id)
        except BackendError as error:
            run.append_event("left_behind", left=0, host=session.address.host, reason=error.message)

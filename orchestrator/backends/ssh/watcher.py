"""The supervisor's threads for an SSH run: one that follows each node, and another start of the agents."""

from __future__ import annotations

import functools
import threading
import time
from typing import TYPE_CHECKING

from orchestrator.backends.remote.checkpoints import remote_checkpoints
from orchestrator.backends.remote.mirror import LONGEST_PAUSE, POLL_SECONDS, Follower, RunWatcher, Source, Update
from orchestrator.backends.remote.transfer import Copy
from orchestrator.backends.settings import Host, profile_of, remote_folder, workdir_of
from orchestrator.backends.ssh.handle import read_handle
from orchestrator.backends.ssh.liveness import Seen, last_seen
from orchestrator.backends.ssh.relaunch import relaunch
from orchestrator.errors import BackendError
from orchestrator.runs.relaunch import Relaunch
from orchestrator.runs.store import RunDir
from orchestrator.transport.pool import ConnectionPool

if TYPE_CHECKING:
    from orchestrator.transport.rpc import Session


class SshWatcher(RunWatcher):
    """The watching of one run, and its next starts."""

    def __init__(self, run: RunDir, pool: ConnectionPool) -> None:
        self.pool = pool
        self.starting: threading.Thread | None = None
        # All of the plan's: this start may have fewer than the next one, and a submit may still be at its first.
        handle, planned = read_handle(run), run.record().nnodes
        nodes = range(max(planned, len(handle.hosts) if handle else 0))
        super().__init__(run, [NodeFollower(run, node, pool) for node in nodes], functools.partial(_node_0, run, pool))

    def relaunch(self, again: Relaunch) -> None:
        """Start the agents anew in a thread of its own, unless that is under way."""
        if self.starting is None or not self.starting.is_alive():
            self.starting = threading.Thread(target=self._relaunch, args=(again,), daemon=True)
            self.starting.start()

    def _relaunch(self, again: Relaunch) -> None:
        try:
            relaunch(self.run, self.pool, again)
        except BackendError as error:
            kind = "start_problem" if error.transient else "submit_failed"
            self.run.append_event(kind, reason=error.message)
            self.ended.wait(LONGEST_PAUSE)


class NodeFollower(Follower):
    """Copies what one node writes, and records whether its agent lives; whichever machine the node is."""

    def __init__(self, run: RunDir, node: int, pool: ConnectionPool) -> None:
        self.run, self.node, self.pool = run, node, pool
        self.workdir = workdir_of(profile_of(run))
        self.handle = read_handle(run)
        self.copy: Copy | None = None
        self.machine: Host | None = None
        self.more = False

    def update(self) -> Update:
        """Copy what is new; an agent counts as gone only when all that it has left is here."""
        self.handle = read_handle(self.run)
        if self.handle is None or self.node >= len(self.handle.hosts):  # not started yet, or left out of this start
            return Update(pause=POLL_SECONDS)
        if self.copy is None or self.machine != self.handle.hosts[self.node]:
            self.machine = self.handle.hosts[self.node]
            self.copy = Copy(self.run, self.node, remote_folder(self.run), remote_checkpoints(self.run), [0])
        session = self.pool.session(self.machine.address, self.workdir)
        self.more = self.copy.update(session, 0.0 if self.more else POLL_SECONDS)
        alive = None if self.more and self.copy.alive is False else self.copy.alive
        self._record(Seen(self.handle.start, self.machine, alive))
        return Update(self.copy.steps if self.node == 0 else None)

    def record_loss(self, error: BackendError) -> None:
        """Record since when the machine has been out of reach."""
        assert self.handle is not None
        assert self.machine is not None
        self._record(Seen(self.handle.start, self.machine, None, time.time(), error.message))

    def has_moved(self) -> bool:
        """Tell whether there has been another start, which may have another machine for the node."""
        return read_handle(self.run) != self.handle

    def _record(self, seen: Seen) -> None:
        """Record what is known of the node's agent now, where that has changed."""
        before = last_seen(self.run, self.node)
        now = seen.after(before)
        if now != before:
            now.write(self.run, self.node)


def sources(run: RunDir, pool: ConnectionPool) -> list[Source]:
    """Return the machine of each node, as it is in this start; none before the first."""
    handle, workdir = read_handle(run), workdir_of(profile_of(run))
    return [
        Source(host.name, (node,), functools.partial(pool.session, host.address, workdir))
        for node, host in enumerate(handle.hosts if handle is not None else ())
    ]


def _node_0(run: RunDir, pool: ConnectionPool) -> Session | None:
    """Return the session with node 0's machine, as it is in this start."""
    return next((source.session() for source in sources(run, pool)), None)

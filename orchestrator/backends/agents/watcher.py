"""The supervisor's threads for a run on other machines. One thread follows each node, and one starts the agents
again after a loss.
"""

from __future__ import annotations

import functools
import threading
import time
from typing import TYPE_CHECKING, Final

from orchestrator.backends.agents.handle import read_handle
from orchestrator.backends.agents.liveness import Seen, last_seen, unreachable_nodes
from orchestrator.backends.agents.relaunch import relaunch
from orchestrator.backends.mirror.checkpoints import remote_checkpoints
from orchestrator.backends.mirror.growing import Copy
from orchestrator.backends.mirror.watching import LONGEST_PAUSE, POLL_SECONDS, Follower, RunWatcher, Source, Update
from orchestrator.backends.settings import AgentsSettings, Host, remote_folder, workdir_of
from orchestrator.errors import BackendError, JobOverError
from orchestrator.outcome.restart import Relaunch
from orchestrator.protocol.events import StartProblem, SubmitFailed
from orchestrator.runs import claims
from orchestrator.runs.store import RunDir
from orchestrator.transport.machine import Machines

if TYPE_CHECKING:
    from orchestrator.transport.machine import Machine

WAITING_PAUSE: Final = 2.0  # seconds between two tries of a start that waits for machines
LOOKS_A_SECOND: Final = 128  # to all nodes of a run together; with more nodes, each machine holds a request for longer


class AgentsWatcher(RunWatcher):
    """Watches one run, and starts its agents again after a loss."""

    def __init__(self, run: RunDir, pool: Machines) -> None:
        self.pool = pool
        self.starting: threading.Thread | None = None
        # All nodes of the plan, because this start may have fewer nodes than the next, or no handle may be written yet.
        handle, planned = read_handle(run), run.record().nnodes
        nodes = range(max(planned, len(handle.hosts) if handle else 0))
        followers = [NodeFollower(run, node, pool) for node in nodes]
        super().__init__(run, followers, functools.partial(_sources_in_reach, run, pool))

    def relaunch(self, again: Relaunch) -> None:
        """Start the agents again in a thread, unless such a thread is still running."""
        if self.starting is None or not self.starting.is_alive():
            self.starting = threading.Thread(target=self._relaunch, args=(again,), daemon=True)
            self.starting.start()

    def _relaunch(self, again: Relaunch) -> None:
        try:
            if not relaunch(self.run, self.pool, again):
                self.ended.wait(WAITING_PAUSE)
        except BackendError as error:
            event = StartProblem if error.transient or claims.is_away(self.run) else SubmitFailed
            self.run.append_event(event(error.message))
            self.ended.wait(LONGEST_PAUSE)


class NodeFollower(Follower):
    """Copies the files of one node from the node's current machine, and records whether its agent lives."""

    def __init__(self, run: RunDir, node: int, pool: Machines) -> None:
        self.run, self.node, self.pool = run, node, pool
        self.workdir = workdir_of(run.record().profile)
        self.handle = read_handle(run)
        self.copy: Copy | None = None
        self.host: Host | None = None
        self.more = False

    def update(self) -> Update:
        """Copy new parts of the files. An agent counts as ended only once all of its files have been copied to this
        machine.
        """
        self.handle = read_handle(self.run)
        if self.handle is None or self.node >= len(self.handle.hosts):  # not started yet, or left out of this start
            return Update(pause=POLL_SECONDS)
        if self.copy is None or self.host != self.handle.hosts[self.node]:
            self.host = self.handle.hosts[self.node]
            self.copy = Copy(self.run, self.node, remote_folder(self.run), remote_checkpoints(self.run), [0])
        self.copy.start, self.copy.agent = self.handle.start, self.handle.agents.get(self.node)
        session = self.pool.session(self.host.address, self.workdir)
        self.more = self.copy.update(session, 0.0 if self.more or self.copy.alive is False else self._hold())
        alive = None if self.more and self.copy.alive is False else self.copy.alive
        is_new = self._record(Seen(self.handle.start, self.host, alive))
        steps = self.copy.steps if self.node == 0 else None
        return Update(steps, POLL_SECONDS if alive is False else 0.0, is_news=is_new or self.copy.has_news)

    def _hold(self) -> float:
        """Return for how many seconds the machine may delay its answer while nothing is new. Node 0 has the shortest
        delay.
        """
        assert self.handle is not None
        return POLL_SECONDS if self.node == 0 else max(POLL_SECONDS, len(self.handle.hosts) / LOOKS_A_SECOND)

    def record_loss(self, error: BackendError) -> None:
        """Record that the machine is unreachable, and the time at which that began."""
        assert self.handle is not None
        assert self.host is not None
        alive = False if isinstance(error, JobOverError) else None  # a scheduler ends all processes of its job
        self._record(Seen(self.handle.start, self.host, alive, time.time(), error.message))

    def has_moved(self) -> bool:
        """Return True if the agents were started again. The node's agent may then run on a different machine."""
        return read_handle(self.run) != self.handle

    def _record(self, seen: Seen) -> bool:
        """Record the observation if it differs from the last one; return True if it does."""
        before = last_seen(self.run, self.node)
        now = seen.after(before)
        if now != before:
            now.write(self.run, self.node)
        return now != before


def sources(run: RunDir, pool: Machines) -> list[Source]:
    """Return the machine of each node in the current start; an empty list before the first start."""
    handle, workdir = read_handle(run), workdir_of(run.record().profile)
    return [
        Source(host.name, (node,), functools.partial(pool.session, host.address, workdir))
        for node, host in enumerate(handle.hosts if handle is not None else ())
    ]


def current_sources(run: RunDir, pool: Machines) -> list[Source]:
    """Return a source for each node. Each source always uses the node's current machine, which another start may
    change.
    """

    def session(node: int) -> Machine:
        handle = read_handle(run)
        if handle is None or node >= len(handle.hosts):
            raise BackendError(f"node {node} runs on no machine now", transient=True)
        return pool.session(handle.hosts[node].address, workdir)

    handle, workdir = read_handle(run), workdir_of(run.record().profile)
    nodes = range(max(run.record().nnodes, len(handle.hosts) if handle else 0))
    return [Source(f"node {node}", (node,), functools.partial(session, node)) for node in nodes]


def former_sources(run: RunDir, pool: Machines) -> list[Source]:
    """Return the machines of earlier starts that take no part in the current start.

    The outputs of these machines get node numbers that follow the plan's node numbers. If all machines share one
    folder, return an empty list, because no machine has outputs of its own.
    """
    handle, settings = read_handle(run), AgentsSettings.of(run.record().profile)
    if handle is None or settings.shared:
        return []
    numbers = {host: len(settings.hosts) + number for number, host in settings.all_hosts.items()}
    return [
        Source(host.name, (numbers[host],), functools.partial(pool.session, host.address, settings.workdir))
        for host in handle.former
        if host in numbers
    ]


def _sources_in_reach(run: RunDir, pool: Machines) -> list[Source]:
    """Return the machines of the current start that were reachable at the last observation."""
    lost = unreachable_nodes(run)
    return [source for source in sources(run, pool) if source.nodes[0] not in lost]

"""The backend for profiles of kind ssh, which starts agents on several machines over SSH."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.backends.agents.backend import Agents
from orchestrator.backends.agents.handle import SECRETS, first_handle, read_handle
from orchestrator.backends.base import Finding, Judge, NodeProof, Sight
from orchestrator.backends.hosts import connections, on_all
from orchestrator.backends.settings import WORKDIR, AgentsSettings, remote_folder, run_folder, workdir_of
from orchestrator.errors import BackendError, StoreError
from orchestrator.runs.claims import is_away
from orchestrator.runs.start_lock import SENDING

if TYPE_CHECKING:  # `orch status` must wait neither for pydantic nor for fabric
    from orchestrator.backends.agents.watcher import AgentsWatcher
    from orchestrator.backends.mirror.watching import Source
    from orchestrator.backends.settings import Host
    from orchestrator.outcome.restart import Relaunch
    from orchestrator.protocol.task import NodeTask
    from orchestrator.runs.restarts.recovery import Reserves
    from orchestrator.runs.store import RunDir
    from orchestrator.specs.plan import LaunchPlan, RunPaths
    from orchestrator.specs.profiles import AnyProfile
    from orchestrator.transport.machine import Machine
    from orchestrator.transport.pool import ConnectionPool

T = TypeVar("T")


class AgentsOverSsh(Agents):
    """Agents on machines that are reached over SSH.

    The supervisor copies the files that the agents write, and records whether each agent lives. `look` reads only that
    record. After a machine is lost, the supervisor starts the agents again.
    """

    pool: ConnectionPool
    is_remote = relaunches = True

    def __init__(self, pool: ConnectionPool | None = None) -> None:
        self.pool = pool or connections()
        self._watchers: dict[str, AgentsWatcher] = {}
        self._lock = threading.Lock()

    # -- starting

    def paths(self, run: RunDir, workdir: str | None, python: str | None) -> RunPaths:
        """Return paths below the profile's `workdir`."""
        from orchestrator.specs.plan import RunPaths

        top = workdir or WORKDIR
        folder = run_folder(top, run.run_id)
        return RunPaths(folder, f"{folder}/code", f"{top}/inputs", "python3", "python3")

    def submit(
        self, plans: Sequence[LaunchPlan], tasks: Sequence[tuple[NodeTask, ...]], runs: Sequence[RunDir]
    ) -> None:
        """Start all agents. Secrets are kept in a file of mode 0600, because a relaunch needs them too."""
        from orchestrator.backends.mirror.given import with_given_checkpoint

        (mine,), (run,) = tasks, runs
        if mine[0].secrets:
            run.write(SECRETS, {"secrets": mine[0].secrets}, private=True)
        with self._sending(run):
            super().submit(plans, [with_given_checkpoint(mine)], runs)

    @contextlib.contextmanager
    def _sending(self, run: RunDir) -> Iterator[None]:
        """While the context lasts, keep a locked file that marks the run's first start as in progress. If that file
        exists but is not locked, the start was killed.

        If the start fails, remove the files that it has sent.
        """
        from orchestrator.protocol.files import locked

        mark = run.path / SENDING
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(locked(mark))
            except OSError as error:
                raise StoreError(f"{mark} can't be written: {error.strerror}", "make room on that disk") from error
            try:
                yield
            except BackendError:
                self._remove_sent(run)
                mark.unlink(missing_ok=True)
                raise
            mark.unlink(missing_ok=True)

    def _remove_sent(self, run: RunDir) -> None:
        """After a failed start that has not written handle.json, remove the files that were sent to the machines."""
        if read_handle(run) is not None:
            return
        settings = AgentsSettings.of(run.record().profile)

        def one(_: int, host: Host) -> None:
            session = self.pool.session(host.address, settings.workdir)
            session.call("remove", run_dir=remote_folder(run), run_id=run.run_id)

        on_all(one, dict(enumerate(settings.hosts)))  # on an unreachable host, `orch gc` removes them

    def _remove_what_a_killed_start_has_sent(self, run: RunDir) -> None:
        """If the process of the first start was killed, remove the files that it has sent to the machines. If the
        process is alive, it removes these files itself when the start fails.
        """
        if (run.path / SENDING).exists():
            from orchestrator.protocol.files import locked_if_free

            with locked_if_free(run.path / SENDING) as is_free:
                if is_free:
                    self._remove_sent(run)
                    (run.path / SENDING).unlink(missing_ok=True)

    def relaunch(self, run: RunDir, again: Relaunch) -> None:
        """Start the agents again in a thread, on the same hosts; a spare replaces an unreachable host."""
        handle = read_handle(run)
        if handle is None or (handle.start >= again.start and handle.state.final):
            return
        self.watcher(run).relaunch(again)

    def reserves(self, run: RunDir) -> Reserves | None:
        """Return the machines that the next start may use: the present hosts, the free machines and the machines of
        earlier starts. No machine is contacted.
        """
        from orchestrator.runs.restarts.recovery import Reserves

        settings = AgentsSettings.of(run.record().profile)
        handle = read_handle(run) or first_handle(settings)
        hosts, free = handle.hosts_of_plan(settings).values(), handle.free_hosts(settings)
        return Reserves(
            tuple(host.name for host in hosts),
            tuple(host.name for host in free),
            frozenset(host.name for host in handle.former),
            settings.min_nodes,
            settings.node_wait,
        )

    # -- looking

    def look(self, run: RunDir, *, recorded: bool = False) -> Sight:
        """Return the supervisor's last observation of each agent. No machine is contacted."""
        from orchestrator.backends.agents import liveness

        handle = read_handle(run)
        hosts = tuple(host.name for host in handle.hosts) if handle else ()
        if recorded:
            return Sight(hosts=hosts)
        return Sight(liveness.alive_agents(run), hosts, liveness.unreachable_nodes(run))

    def watcher(self, run: RunDir) -> AgentsWatcher:
        """Return the watcher, whose threads copy the files of the run's nodes. The first call starts the threads."""
        from orchestrator.backends.agents.watcher import AgentsWatcher

        with self._lock:
            if run.run_id not in self._watchers:
                self._watchers[run.run_id] = AgentsWatcher(run, self.pool)
            return self._watchers[run.run_id]

    def let_go(self, run: RunDir) -> None:
        """Stop the threads that copy the run's files."""
        with self._lock:
            watcher = self._watchers.pop(run.run_id, None)
        if watcher is not None:
            watcher.stop()

    def wait(self, run: RunDir, timeout: float) -> None:
        """Wait until a file that the watcher's threads copy has changed, for `timeout` seconds at most."""
        if read_handle(run) is None:  # the submit may still be pulling an image
            time.sleep(timeout)  # no event reports that another process has written the handle
        else:
            self.watcher(run).wait(timeout)

    def sources(self, run: RunDir, *, present: bool = False) -> list[Source]:
        """Return the machines of the current start and of earlier starts. With `present`, return only the machine that
        each node has at the moment.
        """
        from orchestrator.backends.agents.watcher import current_sources, former_sources, sources

        if present:
            return current_sources(run, self.pool)
        return [*sources(run, self.pool), *former_sources(run, self.pool)]

    def reach(self, run: RunDir, node: int, argv: Sequence[str], *, terminal: bool) -> list[str]:
        """Return the command that runs on the node's current machine, by ssh or by the scheduler's own command."""
        from orchestrator.transport.in_job import in_job

        handle = read_handle(run)
        if handle is None:
            raise BackendError(f"run {run.run_id} has not started on any machine yet")
        address = self.pool.way(handle.hosts[node].address, workdir_of(run.record().profile))
        if address.is_by_ssh:
            return self.pool.over_ssh(address, argv, terminal=terminal)
        return in_job(address, argv, terminal=terminal)

    def with_python(self, run: RunDir, node: int, argv: Sequence[str]) -> list[str]:
        """Return a command that looks for an interpreter in the same order as the connection of orch's server."""
        from orchestrator.node.system.interpreter import first_python

        address = (read_handle(run) or first_handle(AgentsSettings.of(run.record().profile))).hosts[node].address
        return first_python(argv[1:], address.python, address.setup)

    # -- ending

    def clean_up(self, run: RunDir) -> list[NodeProof]:
        """Kill the run's remaining processes on every node, and remove files of a killed start. Return a result for
        each node, which also says whether the node was unreachable.
        """
        self._remove_what_a_killed_start_has_sent(run)
        return super().clean_up(run)

    def _on_machines(
        self, run: RunDir, work: Callable[[int | None, Machine, str], T], without: Collection[int] = ()
    ) -> tuple[dict[int, T], dict[int, BackendError]]:
        handle = read_handle(run)
        if handle is None or not (profile := run.record().profile):
            return {}, {}
        workdir, folder = workdir_of(profile), remote_folder(run)
        hosts = {node: host for node, host in enumerate(handle.hosts) if node not in without}
        return on_all(lambda node, host: work(node, self.pool.session(host.address, workdir), folder), hosts)

    def unreachable(self, run: RunDir) -> set[int]:
        """Return the nodes that this process watches and can't reach at the moment."""
        if run.run_id not in self._watchers:
            return set()
        from orchestrator.backends.agents.liveness import unreachable_nodes

        return set(unreachable_nodes(run))

    def collect(self, run: RunDir) -> None:
        """Copy the files that are only on the nodes to this machine, then remove the run's folders on the nodes.
        Record the outputs that could not be copied. If a node is lost after its agent has ended, the run waits for
        the node for up to `node_wait`.
        """
        from orchestrator.backends.agents.watcher import former_sources, sources
        from orchestrator.backends.mirror.watching import finish, nodes_ended

        lost = self.unreachable(run) - nodes_ended(run)
        self.let_go(run)
        # If this machine did not submit the run, the machine that did may reach what this machine can't.
        patience = math.inf if is_away(run) else AgentsSettings.of(run.record().profile).node_wait
        finish(run, sources(run, self.pool), lost, former_sources(run, self.pool), patience)

    # -- a profile's machines

    def holdings(self, profile: AnyProfile) -> list[dict[str, Any]]:
        """List every machine, spares included: its cores, GPUs and free space, and the run that holds each place (GPU
        or slot).
        """
        from orchestrator.backends.agents.holdings import holdings

        return holdings(AgentsSettings.of(profile), self.pool)

    def collect_garbage(self, profile: AnyProfile, judge: Judge, *, dry_run: bool) -> list[Finding]:
        """List the remains of ended runs on the machines, spares included. Unless `dry_run` is True, remove a run's
        remains if `judge` permits it.
        """
        from orchestrator.backends.agents.holdings import collect_garbage

        return collect_garbage(AgentsSettings.of(profile), self.pool, judge, dry_run=dry_run)

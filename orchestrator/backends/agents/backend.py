"""Agents on machines where orch starts them itself: on this machine, or on several machines over SSH."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.backends.agents.handle import SECRETS, SENDING, agents_here, first_handle, read_handle
from orchestrator.backends.base import Backend, Check, Finding, Judge, NodeProof, Sight, Turn
from orchestrator.backends.settings import SshSettings, profile_of, remote_folder, workdir_of
from orchestrator.errors import BackendError, PlacesTakenError, StoreError
from orchestrator.node.system.processes import is_alive, wait_gone
from orchestrator.runs.dependencies import queue_place

if TYPE_CHECKING:  # `orch status` must wait neither for pydantic nor for fabric
    from pathlib import Path

    from orchestrator.backends.agents.watcher import SshWatcher
    from orchestrator.backends.replay_stage import Order
    from orchestrator.backends.settings import Host
    from orchestrator.protocol.task import NodeTask
    from orchestrator.runs.files.logs import Selection
    from orchestrator.runs.restarts.recovery import Reserves
    from orchestrator.runs.restarts.relaunch import Relaunch
    from orchestrator.runs.store import RunDir
    from orchestrator.specs.plan import LaunchPlan, Place
    from orchestrator.specs.profiles import AnyProfile
    from orchestrator.transport.machine import Machine, Machines
    from orchestrator.transport.pool import ConnectionPool

T = TypeVar("T")


def on_this_machine() -> Agents:
    """Return the backend for profiles of kind local."""
    return Agents(None)


def over_ssh() -> Agents:
    """Return the backend for profiles of kind ssh."""
    from orchestrator.backends.remote.hosts import connections

    return Agents(connections())


class Agents(Backend):
    """Agents as detached processes of the user.

    With a connection pool the machines are reached over SSH. The supervisor copies the files that the agents write and
    records what it has seen of them. It starts the agents again after a loss.

    Without a pool the only machine is this one. Its files are the run's own, so nothing is copied, and `look` asks the
    kernel. Whatever ends this machine's agents ends the supervisor too, so they are not started again.
    """

    def __init__(self, pool: ConnectionPool | None) -> None:
        self.pool = pool
        self.is_remote = self.relaunches = pool is not None
        self._watchers: dict[str, SshWatcher] = {}
        self._lock = threading.Lock()

    @property
    def machines(self) -> Machines:
        """Return what gives the machine at an address."""
        from orchestrator.transport.machine import OnlyHere

        return self.pool or OnlyHere()

    # -- starting

    def place(self, run: RunDir, workdir: str | None, python: str | None) -> Place:
        """Return a folder of the run in orch's folder on every node; on this machine, the run's own folder."""
        from orchestrator.specs.plan import Place

        if self.pool is None:
            trains, inputs = python or sys.executable, str(run.root / "inputs")
            return Place(str(run.path), str(run.path / "code"), inputs, sys.executable, trains)
        top = workdir or "~/.orch"
        folder = f"{top}/runs/{run.run_id}"
        return Place(folder, f"{folder}/code", f"{top}/inputs", "python3", "python3")

    def submit(self, plan: LaunchPlan, tasks: tuple[NodeTask, ...], run: RunDir) -> None:
        """Prepare every machine, then start all agents. Nothing is started while one node can't take part."""
        from orchestrator.backends.agents.start import Start

        settings = SshSettings.of(plan.profile)
        if self.pool is None:
            settings = replace(settings, workdir=str(run.root))
        else:
            from orchestrator.backends.remote.given import with_given_checkpoint

            if tasks[0].secrets:
                run.write(SECRETS, {"secrets": tasks[0].secrets}, private=True)
            tasks = with_given_checkpoint(tasks)
        hosts = dict(enumerate(settings.hosts))
        with _sending(run) if self.is_remote else contextlib.nullcontext():
            try:
                Start(self.machines, run, settings, hosts).begin(tasks, tuple(hosts))
            except BackendError as error:
                handle = run.path / "handle.json"
                if isinstance(error, PlacesTakenError) and handle.exists():  # of an interrupted start
                    self._end_processes(run)  # nothing is held while the run waits
                    handle.unlink()
                self._remove_sent(run)
                raise
        self._leave_queue(run)

    def turn(self, run: RunDir) -> Turn | None:
        """Return the run's place among the runs that wait for places of its machines."""
        if queue_place(run) is None:
            return None
        from orchestrator.backends.places.waiting import Waiting

        return Waiting.recorded(self.machines, run)

    def _leave_queue(self, run: RunDir) -> None:
        if (turn := self.turn(run)) is not None:
            turn.leave()

    def _remove_sent(self, run: RunDir) -> None:
        """Remove the files of a start that came to no agent: without a handle, nobody else knows of them."""
        if self.pool is None or read_handle(run) is not None:
            return
        from orchestrator.backends.remote.hosts import on_all

        pool, settings = self.pool, SshSettings.of(profile_of(run))

        def one(_: int, host: Host) -> None:
            session = pool.session(host.address, settings.workdir)
            session.call("remove", run_dir=remote_folder(run), run_id=run.run_id)

        on_all(one, dict(enumerate(settings.hosts)))  # gc removes them on a host that is out of reach

    def _remove_what_a_killed_start_has_sent(self, run: RunDir) -> None:
        """Remove the files of a start whose process was killed. A start that is still at work removes them itself."""
        if (run.path / SENDING).exists():
            from orchestrator.protocol.files import locked_if_free

            with locked_if_free(run.path / SENDING) as is_free:
                if is_free:
                    self._remove_sent(run)
                    (run.path / SENDING).unlink(missing_ok=True)

    def relaunch(self, run: RunDir, again: Relaunch) -> None:
        """Start the agents again in the background: on the same hosts, with a spare for a host that is out of reach."""
        handle = read_handle(run)
        if handle is None or (handle.start >= again.start and handle.state.final):
            return
        self.watcher(run).relaunch(again)

    def reserves(self, run: RunDir) -> Reserves | None:
        """Return the machines of the next start by the rules of `relaunch.machines`, as far as no machine is asked."""
        if not self.relaunches:
            return None
        from orchestrator.runs.restarts.recovery import Reserves

        settings = SshSettings.of(profile_of(run))
        handle = read_handle(run) or first_handle(settings)
        hosts, free = handle.hosts_of_plan(settings).values(), handle.free_machines(settings)
        return Reserves(
            tuple(host.name for host in hosts),
            tuple(host.name for host in free),
            frozenset(host.name for host in handle.former),
            settings.min_nodes,
            settings.node_wait,
        )

    # -- looking

    def look(self, run: RunDir, *, recorded: bool = False) -> Sight:
        """Look at each recorded agent's pid and start time; of other machines, return what the supervisor saw last.

        Pids of another machine that shares the state folder belong to other processes here.
        """
        if self.pool is None:
            if recorded:
                return Sight()
            handle = read_handle(run)
            agents = agents_here(run, handle)
            if handle is not None and (other := handle.other_machine):
                return Sight(dict.fromkeys(agents), other_machine=other)
            return Sight({node: is_alive(process) for node, process in agents.items()})
        from orchestrator.backends.agents import liveness

        handle = read_handle(run)
        hosts = tuple(host.name for host in handle.hosts) if handle else ()
        if recorded:
            return Sight(hosts=hosts)
        return Sight(liveness.alive_agents(run), hosts, liveness.unreachable_nodes(run))

    def watcher(self, run: RunDir) -> SshWatcher:
        """Return the threads that copy the files of the run's nodes; the first call starts them."""
        from orchestrator.backends.agents.watcher import SshWatcher

        assert self.pool is not None
        with self._lock:
            if run.run_id not in self._watchers:
                self._watchers[run.run_id] = SshWatcher(run, self.pool)
            return self._watchers[run.run_id]

    def wait(self, run: RunDir, timeout: float) -> None:
        """Wait until the first living agent ends, by its pidfd; of other machines, copy files until one has changed."""
        handle = read_handle(run)
        if self.pool is None:
            agents = () if handle is not None and handle.other_machine else agents_here(run, handle).values()
            if living := [process for process in agents if is_alive(process)]:
                wait_gone(living[:1], timeout)
            else:
                time.sleep(timeout)  # agents of another machine, or not started yet: no pidfd to wait on
        elif handle is None:  # its submit is still at work, for as long as an image is pulled
            time.sleep(timeout)  # nothing tells when another process has written its handle
        else:
            self.watcher(run).wait(timeout)

    @contextlib.contextmanager
    def bringing_logs(self, run: RunDir, selection: Selection) -> Iterator[None]:
        """While the context lasts, copy the chosen logs here. Only machines that have such logs are connected to."""
        if self.pool is None:
            yield
            return
        from orchestrator.backends.agents.watcher import current_sources
        from orchestrator.backends.remote.mirror import watching_logs

        with watching_logs(run, current_sources(run, self.pool), selection):
            yield

    def reach(self, run: RunDir, node: int, argv: Sequence[str], *, terminal: bool) -> list[str]:
        """Return the command by ssh, to the present machine of the node; on this machine, the command itself."""
        if self.pool is None:
            return list(argv)
        from orchestrator.transport.openssh import over_ssh

        handle = read_handle(run)
        if handle is None:
            raise BackendError(f"run {run.run_id} has reached no machine yet")
        return over_ssh(handle.hosts[node].address, argv, terminal=terminal)

    def stage_replay(self, run: RunDir, node: int, name: str, checkpoint: Path | None, order: Order) -> list[str]:
        """Use a folder beside the runs' on the node's machine, or in the run's folder if that is on this machine."""
        if self.pool is None:
            from orchestrator.backends import replay_stage

            return replay_stage.stage_replay(run, name, checkpoint, order, sys.executable)
        from orchestrator.backends.remote.upload import stage_replay

        handle, workdir = read_handle(run), workdir_of(profile_of(run))
        assert handle is not None, "reach() has refused"
        session = self.pool.session(handle.hosts[node].address, workdir)
        return stage_replay(session, run, workdir, name, checkpoint, order)

    # -- ending

    def cancel(self, run: RunDir) -> None:
        """Send TERM to every agent and put the recorded cancel on its node. Unreachable nodes get it later.

        Agents on another machine that shares the state folder get it from the supervisor there.
        """
        agents, recorded = self._recorded_agents(run), (run.read("cancel.json") or {}) if self.is_remote else None

        def one(node: int | None, machine: Machine, folder: str) -> None:
            machine.call("cancel", run_dir=folder, node=node, cancel=recorded, agents=agents)

        self._on_machines(run, one)

    def clean_up(self, run: RunDir) -> list[NodeProof]:
        """Kill whatever is left on every node, and take the run out of its queue. Unreachable nodes are named."""
        if self.pool is None and (other := self.look(run).other_machine):
            return [NodeProof(0, other, 0, is_unreachable=True)]
        self._leave_queue(run)
        self._remove_what_a_killed_start_has_sent(run)
        return self._end_processes(run)

    def _end_processes(self, run: RunDir) -> list[NodeProof]:
        handle, lost, agents = read_handle(run), self.unreachable(run), self._recorded_agents(run)

        def one(node: int | None, machine: Machine, folder: str) -> NodeProof:
            reply, _ = machine.call(
                "clean_up", run_dir=folder, run_id=run.run_id, node=node, agents=agents, anywhere=False
            )
            return NodeProof(node or 0, reply["host"], reply["ended"], tuple(reply["survivors"]))

        proofs, failed = self._on_machines(run, one, without=lost)
        for node in {*failed, *lost}:
            host = handle.hosts[node].name if handle else "?"
            proofs[node] = NodeProof(node, host, 0, is_unreachable=True)
        return [proofs[node] for node in sorted(proofs)]

    def _recorded_agents(self, run: RunDir) -> dict[str, tuple[int, int]]:
        handle = read_handle(run)
        return {str(node): agent for node, agent in handle.agents.items()} if handle is not None else {}

    def _on_machines(
        self, run: RunDir, work: Callable[[int | None, Machine, str], T], without: Collection[int] = ()
    ) -> tuple[dict[int, T], dict[int, BackendError]]:
        """Do the work on the run's machines, given a node (None: all nodes) and the run's folder there.

        Return the results and the errors by node, as `on_all` does.
        """
        from orchestrator.backends.remote.hosts import on_all
        from orchestrator.transport.machine import LocalMachine

        handle, pool = read_handle(run), self.pool
        if pool is None:
            machines = {} if handle is not None and handle.other_machine else {0: LocalMachine()}
            return on_all(lambda _, machine: work(None, machine, str(run.path)), machines)
        if handle is None or not (profile := profile_of(run)):
            return {}, {}
        workdir, folder = workdir_of(profile), remote_folder(run)
        hosts = {node: host for node, host in enumerate(handle.hosts) if node not in without}
        return on_all(lambda node, host: work(node, pool.session(host.address, workdir), folder), hosts)

    def unreachable(self, run: RunDir) -> set[int]:
        """Return the nodes that this process watches and that are out of reach now."""
        if run.run_id not in self._watchers:
            return set()
        from orchestrator.backends.agents.liveness import unreachable_nodes

        return set(unreachable_nodes(run))

    def collect(self, run: RunDir) -> None:
        """Copy the rest of the files here, then remove the run's folders on the nodes; record what stays there."""
        if self.pool is None:
            return
        from orchestrator.backends.agents.watcher import former_sources, sources
        from orchestrator.backends.remote.mirror import finish

        lost = self.unreachable(run)
        with self._lock:
            watcher = self._watchers.pop(run.run_id, None)
        if watcher is not None:
            watcher.stop()
        finish(run, sources(run, self.pool), lost, former_sources(run, self.pool))

    def bring_outputs(self, run: RunDir) -> None:
        """Copy the outputs that are still on the nodes; if the run has ended, remove its folders there."""
        if self.pool is None:
            return
        from orchestrator.backends.agents.watcher import former_sources, sources
        from orchestrator.backends.remote.mirror import bring_outputs

        bring_outputs(run, [*sources(run, self.pool), *former_sources(run, self.pool)])

    # -- a profile's machines

    def doctor(self, profile: AnyProfile, *, on_node: bool) -> list[Check]:
        """Check every machine of the nodes, all at once."""
        from orchestrator.backends.agents.doctor import examine

        return examine(profile, self.machines)

    def holdings(self, profile: AnyProfile) -> list[dict[str, Any]]:
        """List every machine, spares included: cores, GPUs, free space, and who holds which place."""
        if self.pool is None:
            return super().holdings(profile)
        from orchestrator.backends.agents.holdings import holdings

        return holdings(SshSettings.of(profile.to_json()), self.pool)

    def collect_garbage(self, profile: AnyProfile, judge: Judge, *, dry_run: bool) -> list[Finding]:
        """List, and remove, what ended runs have left on the machines, spares included."""
        if self.pool is None:
            return super().collect_garbage(profile, judge, dry_run=dry_run)
        from orchestrator.backends.agents.holdings import collect_garbage

        return collect_garbage(SshSettings.of(profile.to_json()), self.pool, judge, dry_run=dry_run)


@contextlib.contextmanager
def _sending(run: RunDir) -> Iterator[None]:
    """Mark a run while its first start is at work. A mark that nobody has locked is that of a start that was killed."""
    from orchestrator.protocol.files import locked

    mark = run.path / SENDING
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked(mark))
        except OSError as error:
            raise StoreError(f"{mark} can't be written: {error.strerror}", "make room there") from error
        try:
            yield
        except BackendError:  # the start has removed the files that it had sent
            mark.unlink(missing_ok=True)
            raise
        mark.unlink(missing_ok=True)

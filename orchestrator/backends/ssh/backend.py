"""Machines reached over SSH: each node is an agent there, detached from the connection that started it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.backends.base import Backend, Check, Finding, Judge, NodeProof, Sight, Turn
from orchestrator.backends.remote.hosts import connections, on_all
from orchestrator.backends.settings import Host, SshSettings, profile_of, remote_folder, workdir_of
from orchestrator.backends.ssh import liveness
from orchestrator.backends.ssh.agents import on_nodes, start_agents
from orchestrator.backends.ssh.handle import SECRETS, SENDING, first_handle, read_handle
from orchestrator.errors import BackendError, PlacesTakenError, StoreError
from orchestrator.protocol.files import locked, locked_if_free
from orchestrator.protocol.task import NodeTask
from orchestrator.runs.restarts.recovery import Reserves
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir
from orchestrator.transport.openssh import over_ssh

if TYPE_CHECKING:  # `orch status` must wait neither for pydantic nor for fabric
    from pathlib import Path

    from orchestrator.backends.replay_stage import Order
    from orchestrator.backends.ssh.watcher import SshWatcher
    from orchestrator.runs.files.logs import Selection
    from orchestrator.runs.restarts.relaunch import Relaunch
    from orchestrator.specs.plan import LaunchPlan, Place
    from orchestrator.specs.profiles import AnyProfile
    from orchestrator.transport.machine import Machine
    from orchestrator.transport.pool import ConnectionPool


class SshBackend(Backend):
    """Agents on machines of the user's; what they write is copied here by the supervisor."""

    is_remote = True
    relaunches: ClassVar[bool] = True
    pool: ConnectionPool

    def __init__(self) -> None:
        self.pool = connections()
        self._watchers: dict[str, SshWatcher] = {}
        self._lock = threading.Lock()

    # -- starting

    def place(self, run: RunDir, workdir: str | None, python: str | None) -> Place:
        """Return a folder of the run in orch's folder on every node."""
        from orchestrator.specs.plan import Place  # noqa: PLC0415 (loads pydantic)

        top = workdir or "~/.orch"
        folder = f"{top}/runs/{run.run_id}"
        return Place(folder, f"{folder}/code", f"{top}/inputs", "python3", "python3")

    def submit(self, plan: LaunchPlan, tasks: tuple[NodeTask, ...], run: RunDir) -> None:
        """Check every node, send the code, then start all agents; nothing is started while one node can't take part."""
        from orchestrator.backends.remote.given import with_given_checkpoint  # noqa: PLC0415 (loads fabric)

        settings = SshSettings.of(plan.profile)
        hosts = dict(enumerate(settings.hosts))
        if tasks[0].secrets:
            run.write(SECRETS, {"secrets": tasks[0].secrets}, private=True)
        tasks = with_given_checkpoint(tasks)
        with _sending(run):
            try:
                start_agents(self.pool, run, settings, hosts, tasks, tuple(hosts))
            except BackendError as error:
                if isinstance(error, PlacesTakenError):  # while its starter was dead: nothing is held while it waits
                    self._end_processes(run)
                    (run.path / "handle.json").unlink(missing_ok=True)
                self._remove_sent(run)
                raise
        self._leave_queue(run)

    def turn(self, run: RunDir) -> Turn | None:
        """Return the run's place among the runs that wait for its hosts."""
        from orchestrator.backends.places.waiting import Waiting  # noqa: PLC0415 (`orch status` does without)

        return Waiting.recorded(self.pool, run)

    def _leave_queue(self, run: RunDir) -> None:
        if (turn := self.turn(run)) is not None:
            turn.leave()

    def _remove_sent(self, run: RunDir) -> None:
        """Remove what was sent for a start that came to no agent: without a handle, nobody else knows of it."""
        if read_handle(run) is not None:
            return
        settings = SshSettings.of(profile_of(run))

        def one(_: int, host: Host) -> None:
            session = self.pool.session(host.address, settings.workdir)
            session.call("remove", run_dir=remote_folder(run), run_id=run.run_id)

        on_all(one, dict(enumerate(settings.hosts)))  # where one is out of reach, gc finds it

    def _remove_what_a_killed_start_has_sent(self, run: RunDir) -> None:
        """Do so for a start whose process was killed; one that goes on sees to it itself."""
        if (run.path / SENDING).exists():
            with locked_if_free(run.path / SENDING) as is_free:
                if is_free:
                    self._remove_sent(run)
                    (run.path / SENDING).unlink(missing_ok=True)

    def relaunch(self, run: RunDir, again: Relaunch) -> None:
        """Start the agents anew, in the background: on the same hosts, with a spare for one that is out of reach."""
        handle = read_handle(run)
        if handle is None or (handle.start >= again.start and handle.state == HandleStatus.SUBMITTED):
            return
        self.watcher(run).relaunch(again)

    def reserves(self, run: RunDir) -> Reserves:
        """Return the machines of the next start by the rules of `relaunch.machines`, as far as no machine is asked."""
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
        """Return what the supervisor saw last. A node out of reach is gone once the gang has ended or left it."""
        handle = read_handle(run)
        hosts = tuple(host.name for host in handle.hosts) if handle else ()
        if recorded:
            return Sight(hosts=hosts)
        return Sight(liveness.alive_agents(run), hosts, liveness.unreachable_nodes(run))

    def watcher(self, run: RunDir) -> SshWatcher:
        """Return the threads that copy what the run's nodes write; started when first asked for."""
        from orchestrator.backends.ssh.watcher import SshWatcher  # noqa: PLC0415 (loads fabric)

        with self._lock:
            if run.run_id not in self._watchers:
                self._watchers[run.run_id] = SshWatcher(run, self.pool)
            return self._watchers[run.run_id]

    def wait(self, run: RunDir, timeout: float) -> None:
        """Copy what is new until something has changed, or for `timeout` seconds."""
        if read_handle(run) is None:  # its submit is still at work, for as long as an image is pulled
            time.sleep(timeout)  # nothing tells when another process has written its handle
            return
        self.watcher(run).wait(timeout)

    @contextlib.contextmanager
    def bringing_logs(self, run: RunDir, selection: Selection) -> Iterator[None]:
        """Have the chosen logs copied here too, while it lasts; only machines that have some of them are dialled."""
        from orchestrator.backends.remote.mirror import watching_logs  # noqa: PLC0415 (loads fabric)
        from orchestrator.backends.ssh.watcher import current_sources  # noqa: PLC0415 (as above)

        with watching_logs(run, current_sources(run, self.pool), selection):
            yield

    def reach(self, run: RunDir, node: int, argv: Sequence[str], *, terminal: bool) -> list[str]:
        """Return the command by ssh, to the machine that the node is now."""
        handle = read_handle(run)
        if handle is None:
            raise BackendError(f"run {run.run_id} has reached no machine yet")
        return over_ssh(handle.hosts[node].address, argv, terminal=terminal)

    def stage_replay(self, run: RunDir, node: int, name: str, checkpoint: Path | None, order: Order) -> list[str]:
        """Use a folder beside the runs' on the node's machine; the run's own may be gone."""
        from orchestrator.backends.remote.upload import stage_replay  # noqa: PLC0415 (loads fabric)

        handle, workdir = read_handle(run), workdir_of(profile_of(run))
        assert handle is not None, "reach() has refused"
        session = self.pool.session(handle.hosts[node].address, workdir)
        return stage_replay(session, run, workdir, name, checkpoint, order)

    # -- ending

    def cancel(self, run: RunDir) -> None:
        """Leave the recorded cancel on every node and TERM its agent; one that is out of reach hears of it later."""
        cancel = run.read("cancel.json") or {}

        def one(node: int, session: Machine, remote: str) -> None:
            session.call("cancel", run_dir=remote, node=node, cancel=cancel)

        on_nodes(self.pool, run, one)

    def clean_up(self, run: RunDir) -> list[NodeProof]:
        """Send KILL to what is left on every node; a node that is out of reach is said to be. No ticket stays."""
        self._leave_queue(run)
        self._remove_what_a_killed_start_has_sent(run)
        return self._end_processes(run)

    def _end_processes(self, run: RunDir) -> list[NodeProof]:
        handle, lost = read_handle(run), self.unreachable(run)

        def one(node: int, session: Machine, remote: str) -> NodeProof:
            agent = handle.agents.get(node) if handle else None
            reply, _ = session.call("clean_up", run_dir=remote, run_id=run.run_id, node=node, agent=agent)
            return NodeProof(node, reply["host"], reply["ended"], tuple(reply["survivors"]))

        proofs, failed = on_nodes(self.pool, run, one, without=lost)
        for node in {*failed, *lost}:
            host = handle.hosts[node].name if handle else "?"
            proofs[node] = NodeProof(node, host, 0, is_unreachable=True)
        return [proofs[node] for node in sorted(proofs)]

    def unreachable(self, run: RunDir) -> set[int]:
        """Return the nodes that this process has been watching, and that are out of reach now."""
        return set(liveness.unreachable_nodes(run)) if run.run_id in self._watchers else set()

    def collect(self, run: RunDir) -> None:
        """Bring what is not here yet, then remove the run's folder on the nodes; what stays behind is recorded."""
        from orchestrator.backends.remote.mirror import finish  # noqa: PLC0415 (loads fabric)
        from orchestrator.backends.ssh.watcher import former_sources, sources  # noqa: PLC0415 (as above)

        lost = self.unreachable(run)
        with self._lock:
            watcher = self._watchers.pop(run.run_id, None)
        if watcher is not None:
            watcher.stop()
        finish(run, sources(run, self.pool), lost, former_sources(run, self.pool))

    def bring_outputs(self, run: RunDir) -> None:
        """Bring the outputs that are still on the nodes; once the run has ended, remove its folders there."""
        from orchestrator.backends.remote.mirror import bring_outputs  # noqa: PLC0415 (loads fabric)
        from orchestrator.backends.ssh.watcher import former_sources, sources  # noqa: PLC0415 (as above)

        bring_outputs(run, [*sources(run, self.pool), *former_sources(run, self.pool)])

    # -- a profile's machines

    def doctor(self, profile: AnyProfile, *, on_node: bool) -> list[Check]:
        """Check every machine of the nodes, all at once."""
        from orchestrator.backends.ssh.doctor import examine  # noqa: PLC0415 (`orch status` does without)

        assert profile.kind == "ssh"
        return examine(profile, self.pool)

    def holdings(self, profile: AnyProfile) -> list[dict[str, Any]]:
        """List every machine, spares included: cores, GPUs, free space, and who holds which place."""
        from orchestrator.backends.ssh.holdings import holdings  # noqa: PLC0415 (as above)

        return holdings(SshSettings.of(profile.model_dump(mode="json")), self.pool)

    def collect_garbage(self, profile: AnyProfile, judge: Judge, *, dry_run: bool) -> list[Finding]:
        """Find and remove what ended runs have left on the machines, spares included."""
        from orchestrator.backends.ssh.holdings import collect_garbage  # noqa: PLC0415 (as above)

        return collect_garbage(SshSettings.of(profile.model_dump(mode="json")), self.pool, judge, dry_run=dry_run)


@contextlib.contextmanager
def _sending(run: RunDir) -> Iterator[None]:
    """Mark a run while its first start is at work; a mark that nobody holds is that of one that was torn away."""
    mark = run.path / SENDING
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked(mark))
        except OSError as error:
            raise StoreError(f"{mark} can't be written: {error.strerror}", "make room there") from error
        try:
            yield
        except BackendError:  # it has removed what it had sent
            mark.unlink(missing_ok=True)
            raise
        mark.unlink(missing_ok=True)

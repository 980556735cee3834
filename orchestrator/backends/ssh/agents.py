"""The agents of one start over SSH: every machine checked and sent what it needs, then all started, or none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.backends.places.leases import leased, needs_of
from orchestrator.backends.remote.hosts import all_of, on_all
from orchestrator.backends.settings import Host, SshSettings, profile_of, remote_folder, workdir_of
from orchestrator.backends.ssh.handle import Handle, read_handle
from orchestrator.errors import BackendError
from orchestrator.protocol.places.devices import shown
from orchestrator.protocol.task import NodeTask, task_json
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir
from orchestrator.transport.openssh import resolve
from orchestrator.transport.pool import ConnectionPool

if TYPE_CHECKING:  # loads fabric
    from orchestrator.transport.machine import Machine

T = TypeVar("T")


def start_agents(
    pool: ConnectionPool,
    run: RunDir,
    settings: SshSettings,
    hosts: Mapping[int, Host],
    tasks: tuple[NodeTask, ...],
    plan_nodes: tuple[int, ...],
) -> None:
    """Start the agents of one start of the run on these hosts.

    plan_nodes: the number of each host in the plan. No agent is started while a host can't take part. If an agent
    can't be started, the other agents of this start are ended, unless it is the run's first start. Raises
    MachinesError, which names each host that can't take part.
    """
    from orchestrator.backends.environments import with_environment  # noqa: PLC0415 (only a start needs it)
    from orchestrator.backends.remote.given import checkpoint_to_give  # noqa: PLC0415 (loads fabric)
    from orchestrator.backends.remote.upload import check_shared, prepare_node  # noqa: PLC0415 (as above)

    start, workdir = tasks[0].start, settings.workdir
    given, before = checkpoint_to_give(run, tasks[0]), read_handle(run)

    def prepare(node: int, host: Host) -> dict[str, Any]:
        session = pool.session(host.address, workdir)
        is_new = start > 0 and (before is None or before.hosts[node : node + 1] != (host,))
        return prepare_node(session, run, tasks[node], workdir, given if node == 0 else None, is_new=is_new)

    hellos, failed = on_all(prepare, hosts)
    failed = failed or listed_twice(hosts, hellos)
    if failed:
        raise all_of(failed)
    if settings.shared:
        sessions = {node: pool.session(hosts[node].address, workdir) for node in sorted(hosts)}
        check_shared(sessions, tasks[0], workdir)
    machines = {node: pool.session(hosts[node].address, workdir) for node in sorted(hosts)}
    tasks = with_environment(run, tasks, machines, workdir, shared=settings.shared)
    needs = needs_of(settings, hosts, tasks, hellos)
    with leased(pool, run, settings, hosts, start, needs, began=before is not None) as places:
        addresses = leader_addresses(hosts[0], hellos[0])
        names = tuple(hosts[node].name for node in sorted(hosts))
        tasks = tuple(
            replace(task, leader_addrs=addresses, hosts=names, env={**task.env, **shown(places[task.node_rank])})
            for task in tasks
        )
        handle = Handle.of_start(before, start, tuple(hosts[node] for node in sorted(hosts)), plan_nodes)
        handle.write(run)
        # A cancel is recorded before its sender looks for this handle, so either side notices the other.
        if start > 0 and is_cancelled(run):
            raise BackendError("the run was cancelled before its agents were started again", transient=True)

        def start_one(node: int, host: Host) -> tuple[int, int]:
            task = task_json(tasks[node])
            reply, _ = pool.session(host.address, workdir).call("start_agent", task, places=places[node])
            return reply["pid"], reply["started"]

        agents, failed = on_all(start_one, hosts)
        state = HandleStatus.INTENT if failed else HandleStatus.SUBMITTED
        replace(handle, state=state, agents=agents).write(run)
        if failed and start > 0:
            _take_back(pool, run, workdir, tasks, {node: hosts[node] for node in agents})
            replace(handle, agents={}).write(run)
        if failed:
            raise all_of(failed)


def listed_twice(hosts: Mapping[int, Host], hellos: Mapping[int, Mapping[str, Any]]) -> dict[int, BackendError]:
    """Return an error for each machine that an earlier entry of the profile's hosts names too. Pure.

    Two entries are one machine if its name and all its addresses are the same. The machine's id would not do, because
    copied disk images and containers share it.
    """
    known: dict[tuple[str, frozenset[str]], int] = {}
    errors = {}
    for node, hello in sorted(hellos.items()):
        addresses = frozenset(each for each in hello["addresses"] if not each.startswith("127."))
        first = known.setdefault((hello["host"], addresses), node)
        if addresses and first != node:
            said = f"it is the same machine as {hosts[first].name} ({', '.join(sorted(addresses))})"
            hint = "list each machine once in hosts:; nproc_per_node: says how many ranks it has"
            errors[node] = BackendError(f"{hosts[node].name}: {said}", hint)
    return errors


def _take_back(
    pool: ConnectionPool, run: RunDir, workdir: str, tasks: tuple[NodeTask, ...], hosts: Mapping[int, Host]
) -> None:
    """End these agents, because the start is tried again with other machines."""
    remote = remote_folder(run)

    def end(node: int, host: Host) -> None:
        session = pool.session(host.address, workdir)
        session.call("clean_up", run_dir=remote, run_id=run.run_id, node=node, agent=None, undo=tasks[node].start)

    on_all(end, hosts)  # the next try detects a machine that is lost meanwhile


def is_cancelled(run: RunDir) -> bool:
    """Return True if a cancel is recorded; then no agent may be started any more."""
    return (run.path / "cancel.json").exists()


def leader_addresses(host: Host, hello: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where the other nodes may reach node 0: its `addr`, else what ssh and the machine itself call it."""
    if host.addr:
        return (host.addr,)
    own = [addr for addr in hello["addresses"] if not addr.startswith("127.")]
    return tuple(dict.fromkeys([resolve(host.address).hostname, *own]))


def on_nodes(
    pool: ConnectionPool, run: RunDir, work: Callable[[int, Machine, str], T], without: Collection[int] = ()
) -> tuple[dict[int, T], dict[int, BackendError]]:
    """Do the work on the machine of every node, given its session and the run's folder there; return as `on_all`."""
    handle, profile = read_handle(run), profile_of(run)
    if handle is None or not profile:
        return {}, {}
    workdir, remote = workdir_of(profile), remote_folder(run)
    hosts = {node: host for node, host in enumerate(handle.hosts) if node not in without}
    return on_all(lambda node, host: work(node, pool.session(host.address, workdir), remote), hosts)

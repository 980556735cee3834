"""One start of a run's agents: every machine is prepared, then the agents of all nodes are started, or none."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from orchestrator.backends.agents.handle import Handle, read_handle
from orchestrator.backends.places.needs import Need, divided, needs_of
from orchestrator.backends.remote.hosts import all_of, on_all
from orchestrator.backends.settings import Host, SshSettings, profile_of, remote_folder, workdir_of
from orchestrator.errors import BackendError
from orchestrator.protocol.places.devices import VISIBLE, shown
from orchestrator.protocol.task import NodeTask, task_json
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir, write_durably
from orchestrator.transport.machine import Machine, Machines

T = TypeVar("T")
Hellos = dict[int, dict[str, Any]]
"""A description of each machine, by the number of its first node. This machine has all nodes of its runs."""


def start_agents(
    pool: Machines,
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
    start, before, is_here = tasks[0].start, read_handle(run), all(host.is_here for host in hosts.values())
    hellos = prepare_here(run) if is_here else prepare_others(pool, run, settings, hosts, tasks, before)
    tasks = _with_environment(pool, run, settings, hosts, tasks, hellos)
    with with_places(pool, run, settings, hosts, tasks, hellos, began=before is not None) as (found, places):
        tasks = found if is_here else _with_addresses(found, hosts, hellos)
        handle = Handle.of_start(before, start, tuple(hosts[node] for node in sorted(hosts)), plan_nodes)
        handle.write(run)
        # A cancel is recorded before its sender looks for this handle, so either side notices the other.
        if start > 0 and is_cancelled(run):
            raise BackendError("the run was cancelled before its agents were started again", transient=True)

        def start_one(node: int, host: Host) -> tuple[int, int]:
            task, archive = task_json(tasks[node]), f"{run.path}/node.pyz" if host.is_here else None
            session = pool.session(host.address, settings.workdir)
            reply, _ = session.call("start_agent", task, places=places[node], archive=archive)
            return reply["pid"], reply["started"]

        agents, failed = on_all(start_one, hosts)
        state = HandleStatus.INTENT if failed else HandleStatus.SUBMITTED
        replace(handle, state=state, agents=agents).write(run)
        if failed and start > 0:
            _take_back(pool, run, settings.workdir, tasks, {node: hosts[node] for node in agents})
            replace(handle, agents={}).write(run)
        if failed:
            raise all_of(failed)


def prepare_here(run: RunDir) -> Hellos:
    """Write the agents' program into the run's folder. The run's files are here, and agents pull their own images."""
    from orchestrator.node.system.gpus.devices import machine_devices  # noqa: PLC0415 (needed here only)
    from orchestrator.transport.node_archive import kept_archive  # noqa: PLC0415 (as above)

    write_durably(run.path / "node.pyz", kept_archive(run.root))
    return {0: {"devices": [each._asdict() for each in machine_devices()], "visible": os.environ.get(VISIBLE)}}


def prepare_others(
    pool: Machines,
    run: RunDir,
    settings: SshSettings,
    hosts: Mapping[int, Host],
    tasks: tuple[NodeTask, ...],
    before: Handle | None,
) -> Hellos:
    """Check every machine and send it the files that its agent needs. Raises MachinesError if one can't take part."""
    from orchestrator.backends.remote.given import checkpoint_to_give  # noqa: PLC0415 (a run here sends nothing)
    from orchestrator.backends.remote.upload import check_shared, prepare_node  # noqa: PLC0415 (as above)

    start, workdir, given = tasks[0].start, settings.workdir, checkpoint_to_give(run, tasks[0])

    def prepare(node: int, host: Host) -> dict[str, Any]:
        session = pool.session(host.address, workdir)
        is_new = start > 0 and (before is None or before.hosts[node : node + 1] != (host,))
        return prepare_node(session, run, tasks[node], workdir, given if node == 0 else None, is_new=is_new)

    hellos, failed = on_all(prepare, hosts)
    failed = failed or listed_twice(hosts, hellos)
    if failed:
        raise all_of(failed)
    if settings.shared:
        check_shared({node: pool.session(hosts[node].address, workdir) for node in sorted(hosts)}, tasks[0], workdir)
    return hellos


def _with_environment(
    pool: Machines,
    run: RunDir,
    settings: SshSettings,
    hosts: Mapping[int, Host],
    tasks: tuple[NodeTask, ...],
    hellos: Hellos,
) -> tuple[NodeTask, ...]:
    if run.record().job.get("environment") is None:
        return tasks
    from orchestrator.backends.environments import with_environment  # noqa: PLC0415 (most jobs have none)

    machines = {node: pool.session(hosts[node].address, settings.workdir) for node in sorted(hellos)}
    return with_environment(run, tasks, machines, settings.workdir, shared=settings.shared)


@contextmanager
def with_places(
    pool: Machines,
    run: RunDir,
    settings: SshSettings,
    hosts: Mapping[int, Host],
    tasks: tuple[NodeTask, ...],
    hellos: Hellos,
    *,
    began: bool,
) -> Iterator[tuple[tuple[NodeTask, ...], dict[int, list[str]]]]:
    """Hold the places of all nodes; yield the tasks, which name each node's GPUs, and the places of each node.

    Raises PlacesTakenError if the run was put into the queue.
    """
    nodes_of: dict[int, Sequence[int]] = {node: [node] if len(hellos) > 1 else sorted(hosts) for node in hellos}
    needs = dict.fromkeys(hellos, Need())
    for first, nodes in nodes_of.items() if settings.leases else ():
        try:
            mine, needs[first] = needs_of(tasks, nodes, hosts[first].name, hellos[first], settings.slots)
        except BackendError as error:
            raise all_of({first: error}) from error
        tasks = tuple(mine[nodes.index(task.node_rank)] if task.node_rank in nodes else task for task in tasks)
    if not any(need.count for need in needs.values()):
        yield tasks, {node: [] for node in hosts}
        return
    from orchestrator.backends.places.leases import leased  # noqa: PLC0415 (most local runs need no place)

    machines = {first: hosts[first] for first in hellos}
    with leased(pool, run, settings, machines, tasks[0].start, needs, began=began) as held:
        places: dict[int, list[str]] = {}
        for first, nodes in nodes_of.items():
            places |= zip(nodes, divided(held[first], [tasks[node] for node in nodes]), strict=True)
        yield tuple(replace(each, env={**each.env, **shown(places[each.node_rank])}) for each in tasks), places


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


def _with_addresses(tasks: tuple[NodeTask, ...], hosts: Mapping[int, Host], hellos: Hellos) -> tuple[NodeTask, ...]:
    """Return the tasks with the machines' names and node 0's addresses. The plan has those of a run on this machine."""
    addresses, names = leader_addresses(hosts[0], hellos[0]), tuple(hosts[node].name for node in sorted(hosts))
    return tuple(replace(task, leader_addrs=addresses, hosts=names) for task in tasks)


def _take_back(
    pool: Machines, run: RunDir, workdir: str, tasks: tuple[NodeTask, ...], hosts: Mapping[int, Host]
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
    """Return the addresses of node 0: its `addr`, else the name that ssh resolves and the machine's own addresses."""
    from orchestrator.transport.openssh import resolve  # noqa: PLC0415 (a run on this machine does without)

    if host.addr:
        return (host.addr,)
    own = [addr for addr in hello["addresses"] if not addr.startswith("127.")]
    return tuple(dict.fromkeys([resolve(host.address).hostname, *own]))


def on_nodes(
    pool: Machines, run: RunDir, work: Callable[[int, Machine, str], T], without: Collection[int] = ()
) -> tuple[dict[int, T], dict[int, BackendError]]:
    """Do the work on each node's machine, with its session and the run's folder there; return as `on_all` does."""
    handle, profile = read_handle(run), profile_of(run)
    if handle is None or not profile:
        return {}, {}
    workdir, remote = workdir_of(profile), remote_folder(run)
    hosts = {node: host for node, host in enumerate(handle.hosts) if node not in without}
    return on_all(lambda node, host: work(node, pool.session(host.address, workdir), remote), hosts)

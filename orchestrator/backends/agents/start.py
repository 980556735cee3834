"""One start of a run's agents: prepares every machine, then starts the agents of all nodes. If a machine can't take
part, no agent is started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.backends.agents.handle import Handle, read_handle
from orchestrator.backends.gpu_checks import check_nvml
from orchestrator.backends.hosts import all_of, on_all
from orchestrator.backends.places.needs import Need, divided, needs_of
from orchestrator.backends.settings import AgentsSettings, Host, run_folder
from orchestrator.backends.working_folder import lay_here
from orchestrator.errors import BackendError
from orchestrator.protocol.places.devices import is_gpu
from orchestrator.protocol.task import NodeTask, task_json
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir, write_durably
from orchestrator.transport.machine import Machine, Machines

Tasks = tuple[NodeTask, ...]
Facts = dict[int, dict[str, Any]]
"""Each machine's answer to `hello`, by the number of the machine's first node. A local run has one machine."""


@dataclass(frozen=True)
class Start:
    """One start of a run: its settings, and the host of each node."""

    pool: Machines
    run: RunDir
    settings: AgentsSettings
    hosts: Mapping[int, Host]

    @property
    def is_here(self) -> bool:
        """Return True if all nodes are on this machine."""
        return all(host.is_here for host in self.hosts.values())

    def machine(self, node: int) -> Machine:
        """Return the machine of a node. Raises BackendError if it can't be reached."""
        return self.pool.session(self.hosts[node].address, self.settings.workdir)

    def begin(self, tasks: Tasks, plan_nodes: tuple[int, ...]) -> None:
        """Prepare every machine and start all agents.

        plan_nodes: the plan's node number for each host. No agent is started if a host can't take part. If an agent
        can't be started, the other agents of this start are ended, unless this is the run's first start. Raises
        MachinesError, which names each host that can't take part.
        """
        before = read_handle(self.run)
        facts = self._prepare_here() if self.is_here else self._prepare_others(tasks, before)
        tasks = self._with_environment(tasks, facts)
        with self.with_places(tasks, facts, began=before is not None) as (placed, places):
            tasks = placed if self.is_here else self._with_addresses(placed, facts)  # a local plan names them
            handle = Handle.of_start(before, tasks[0].start, self._hosts_in_order(), plan_nodes)
            handle.write(self.run)  # with the state intent
            self._check_not_cancelled(tasks[0].start)
            agents, failed = self._start_agents(tasks, places)
            state = HandleStatus.INTENT if failed else HandleStatus.SUBMITTED
            replace(handle, state=state, agents=agents).write(self.run)
            if failed and tasks[0].start > 0:
                self._take_back(tasks[0].start)
                replace(handle, agents={}).write(self.run)
            if failed:
                raise all_of(failed)

    def _hosts_in_order(self) -> tuple[Host, ...]:
        return tuple(self.hosts[node] for node in sorted(self.hosts))

    def _check_not_cancelled(self, start: int) -> None:
        """Raise BackendError if the run was cancelled before its agents are started again.

        A cancel is recorded before its sender looks for this start's handle. So the sender finds the handle, or this
        check finds the cancel.
        """
        if start > 0 and self.run.is_cancelled:
            raise BackendError("the run was cancelled before its agents were started again", transient=True)

    def _start_agents(
        self, tasks: Tasks, places: Mapping[int, list[str]]
    ) -> tuple[dict[int, tuple[int, int]], dict[int, BackendError]]:
        """Start the agent of each node. Return (pid and start time of each started agent, error of each other node)."""

        def start_one(node: int, host: Host) -> tuple[int, int]:
            task, archive = task_json(tasks[node]), f"{self.run.path}/node.pyz" if host.is_here else None
            reply, _ = self.machine(node).call("start_agent", task, places=places[node], archive=archive)
            return reply["pid"], reply["started"]

        return on_all(start_one, self.hosts)

    def _prepare_here(self) -> Facts:
        """Write the agents' program (node.pyz) into the run's folder, and create the run's working folder. Return a
        description of this machine's GPUs.
        """
        from orchestrator.node.system.gpus.devices import gpu_facts
        from orchestrator.transport.node_archive import kept_archive

        lay_here(self.run)
        write_durably(self.run.path / "node.pyz", kept_archive(self.run.root))
        return {0: gpu_facts()}

    def _prepare_others(self, tasks: Tasks, before: Handle | None) -> Facts:
        """Check every machine, and send it the files that its agent needs."""
        from orchestrator.backends.mirror.given import checkpoint_to_give
        from orchestrator.backends.mirror.upload import check_shared, prepare_node

        start, workdir, given = tasks[0].start, self.settings.workdir, checkpoint_to_give(self.run, tasks[0])

        def prepare(node: int, host: Host) -> dict[str, Any]:
            is_new = start > 0 and (before is None or before.hosts[node : node + 1] != (host,))
            of_node_0 = given if node == 0 else None
            return prepare_node(self.machine(node), self.run, tasks[node], workdir, of_node_0, is_new=is_new)

        facts, failed = on_all(prepare, self.hosts)
        if failed := failed or listed_twice(self.hosts, facts):
            raise all_of(failed)
        if self.settings.shared:
            check_shared({node: self.machine(node) for node in sorted(self.hosts)}, tasks[0], workdir)
        return facts

    def _with_environment(self, tasks: Tasks, facts: Facts) -> Tasks:
        if self.run.record().job.environment is None:
            return tasks
        from orchestrator.backends.environments import with_environment

        machines, settings = {node: self.machine(node) for node in sorted(facts)}, self.settings
        return with_environment(self.run, tasks, machines, settings.workdir, shared=settings.shared)

    @contextmanager
    def with_places(self, tasks: Tasks, facts: Facts, *, began: bool) -> Iterator[tuple[Tasks, dict[int, list[str]]]]:
        """Hold the places (GPUs or slots) of all nodes. Yield the tasks, in which each node's GPUs are set, and the
        places of each node.

        Raises PlacesTakenError if the run was put into the queue. began: True if an earlier start was interrupted. The
        agents of that start may already hold their places.
        """
        nodes_of: dict[int, Sequence[int]] = {node: [node] if len(facts) > 1 else sorted(self.hosts) for node in facts}
        needs, told = dict.fromkeys(facts, Need()), dict(enumerate(tasks))
        for first, nodes in nodes_of.items():
            name, known = self.hosts[first].name, facts[first]
            try:
                check_nvml(tasks[first], name, known)
                if self.settings.leases:
                    mine, needs[first] = needs_of(tasks, nodes, name, known, self.settings.slots)
                    told |= zip(nodes, mine, strict=True)
            except BackendError as error:
                raise all_of({first: error}) from error
        tasks, places = tuple(told.values()), {node: list[str]() for node in self.hosts}
        if not any(need.count for need in needs.values()):
            yield tasks, places
            return
        from orchestrator.backends.places.leases import leased

        hosts = {first: self.hosts[first] for first in facts}
        with leased(self.pool, self.run, self.settings, hosts, tasks[0].start, needs, began=began) as held:
            for first, nodes in nodes_of.items():
                places |= zip(nodes, divided(held[first], [tasks[node] for node in nodes]), strict=True)
            held_by = {node: tuple(filter(is_gpu, names)) for node, names in places.items()}
            yield tuple(replace(each, reserved=held_by[each.node_rank]) for each in tasks), places

    def _with_addresses(self, tasks: Tasks, facts: Facts) -> Tasks:
        addresses = leader_addresses(self.hosts[0], facts[0])
        names = tuple(host.name for host in self._hosts_in_order())
        return tuple(replace(task, leader_addrs=addresses, hosts=names) for task in tasks)

    def _take_back(self, start: int) -> None:
        """End the agents of this start, because the start is repeated on other machines. A machine that failed may have
        started its agent too, if only its answer was lost.
        """
        folder = run_folder(self.settings.workdir, self.run.run_id)

        def end(node: int, _: Host) -> None:
            self.machine(node).call("clean_up", run_dir=folder, run_id=self.run.run_id, node=node, undo=start)

        on_all(end, self.hosts)  # the next try detects a machine that is lost meanwhile


def listed_twice(hosts: Mapping[int, Host], facts: Mapping[int, Mapping[str, Any]]) -> dict[int, BackendError]:
    """Return an error for each machine that the profile lists twice, as a dict from the node number of the machine's
    second entry.

    Two entries are the same machine if its name and all its addresses are equal. The machine id is not compared,
    because copied disk images and containers have the same id.
    """
    known: dict[tuple[str, frozenset[str]], int] = {}
    errors = {}
    for node, hello in sorted(facts.items()):
        addresses = frozenset(each for each in hello["addresses"] if not each.startswith("127."))
        first = known.setdefault((hello["host"], addresses), node)
        if addresses and first != node:
            said = f"it is the same machine as {hosts[first].name} ({', '.join(sorted(addresses))})"
            hint = "list each machine once in `hosts`; `nproc_per_node` sets its number of ranks"
            errors[node] = BackendError(f"{hosts[node].name}: {said}", hint)
    return errors


def leader_addresses(host: Host, hello: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the addresses at which the other nodes try to reach node 0: the profile's `addr`, or else the host name
    from ssh's configuration and the machine's own addresses.
    """
    from orchestrator.transport.openssh import resolve

    if host.addr:
        return (host.addr,)
    own = [addr for addr in hello["addresses"] if not addr.startswith("127.")]
    return tuple(dict.fromkeys([resolve(host.address).hostname, *own]))

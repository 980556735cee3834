"""The record of a run's agents, which is called the handle (handle.json): the agents' machines, their pids, and the
number of the start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

from orchestrator.backends.settings import AgentsSettings, Host
from orchestrator.errors import StoreError
from orchestrator.node.system.processes import Process
from orchestrator.protocol.frozen import Value
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir, names_in

SECRETS: Final = "secrets.json"  # the secrets for another start; mode 0600, removed with the verdict
NOBODY: Final = Process(0, 0)  # a placeholder for an agent that was started, but whose record is damaged


class Handle(Value):
    """The machines and agents of one start of a run.

    The plan's node numbers are the same in all starts. In addition, each start numbers its own nodes: the machine with
    the newest checkpoint is node 0, and a lost node gets no number.
    """

    state: HandleStatus
    start: int
    hosts: tuple[Host, ...]
    agents: dict[int, tuple[int, int]]  # node -> (pid, start time)
    plan_nodes: tuple[int, ...]  # the plan's number of each node
    former: tuple[Host, ...] = ()  # machines of earlier starts that take no part in this start
    here: str = field(default_factory=lambda: os.uname().nodename)  # the name of the machine that wrote the handle

    def write(self, run: RunDir) -> None:
        """Write this record into the run's folder, as handle.json."""
        agents = {str(node): {"pid": pid, "started": started} for node, (pid, started) in self.agents.items()}
        hosts, former = ([host.to_json() for host in each] for each in (self.hosts, self.former))
        values = {"state": self.state, "start": self.start, "host": self.here, "hosts": hosts, "agents": agents}
        run.write("handle.json", {**values, "seats": self.plan_nodes, "former": former})

    @staticmethod
    def of_start(before: Handle | None, start: int, hosts: tuple[Host, ...], plan_nodes: tuple[int, ...]) -> Handle:
        """Return the record of the machines for a new start. `before` is the record of the previous start; None if
        there is no previous start.
        """
        known = (*before.former, *before.hosts) if before is not None else ()
        now = set(hosts)
        former = tuple(dict.fromkeys(host for host in known if host not in now))
        return Handle(HandleStatus.INTENT, start, hosts, {}, plan_nodes, former)

    @property
    def by_plan_node(self) -> dict[int, Host]:
        """Return the machine of each node of the plan that takes part in this start."""
        return dict(zip(self.plan_nodes, self.hosts, strict=True))

    def hosts_of_plan(self, settings: AgentsSettings) -> dict[int, Host]:
        """Return the machine of each node of the plan, including nodes that take no part in this start."""
        return {number: self.by_plan_node.get(number, host) for number, host in enumerate(settings.hosts)}

    def free_hosts(self, settings: AgentsSettings) -> list[Host]:
        """Return the profile's machines that no node uses. They may replace a lost machine."""
        from orchestrator.outcome.machines import candidates

        return candidates((*settings.spares, *settings.hosts), self.hosts_of_plan(settings).values(), self.former)

    @property
    def other_machine(self) -> str:
        """If another machine has started this local run, return that machine's name; otherwise return "". Several
        machines may share a state folder.
        """
        is_local = any(host.is_here for host in self.hosts)
        return self.here if is_local and self.here not in ("", os.uname().nodename) else ""


def read_handle(run: RunDir) -> Handle | None:
    """Return the handle (the record of the run's machines and agents); None if no handle was written.

    If handle.json is damaged, return a handle with the profile's hosts and no agents, or None if the profile is lost
    too.
    """
    try:
        return run.made_of("handle.json", _handle_of)
    except (StoreError, KeyError, TypeError, ValueError, AttributeError):
        try:
            record = run.record()
        except StoreError:
            return None
        return first_handle(AgentsSettings.of(record.profile)) if record.profile_document else None


def first_handle(settings: AgentsSettings) -> Handle:
    """Return the handle (the record of machines and agents) of a first start on the profile's hosts, without agents."""
    return Handle(HandleStatus.SUBMITTED, 0, settings.hosts, {}, tuple(range(len(settings.hosts))), here="")


def _handle_of(run: RunDir) -> Handle | None:
    data = run.read("handle.json")
    if data is None:
        return None
    agents = {int(node): (int(each["pid"]), int(each["started"])) for node, each in data["agents"].items()}
    hosts = tuple(map(Host.from_json, data["hosts"]))
    plan_nodes = tuple(map(int, data.get("seats") or range(len(hosts))))
    if len(plan_nodes) != len(hosts):
        raise ValueError("the plan must have one node for each host")
    former = tuple(map(Host.from_json, data.get("former", ())))
    return Handle(
        HandleStatus(data["state"]), data.get("start", 0), hosts, agents, plan_nodes, former, str(data.get("host", ""))
    )


def agents_here(run: RunDir, handle: Handle | None) -> dict[int, Process]:
    """Return the agents of a local run: those that handle.json names, and those that only recorded themselves in the
    run's folder.

    If `orch submit` was killed, it may have started agents that are missing from handle.json. The run's program may
    write into the nodes' folders, so a missing or damaged record is no error, handle.json takes precedence over these
    records, and a folder of a node that the run does not have is ignored.
    """
    agents = {node: Process(*each) for node, each in handle.agents.items()} if handle is not None else {}
    nodes = {int(name) for name in names_in(f"{run.path}/nodes") if name.isdecimal()}
    if handle is not None:
        nodes &= set(range(len(handle.hosts)))
    for node in nodes - agents.keys():
        try:
            own = run.read(f"nodes/{node}/agent.json")
        except StoreError:
            own = {}
        if own is not None:
            agents[node] = _process(own) or NOBODY
    return {node: agents[node] for node in sorted(agents)}


def _process(values: Mapping[str, Any]) -> Process | None:
    """Return the process of a record; None if the record is damaged."""
    if [type(values.get(name)) for name in ("pid", "started")] != [int, int]:
        return None
    return Process(values["pid"], values["started"])

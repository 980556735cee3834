"""What is recorded of a run's agents over SSH: on which machines they are, of which start, and their pids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orchestrator.backends.settings import Host, SshSettings, profile_of
from orchestrator.errors import StoreError
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir

SENDING: Final = "sending"  # there from before anything is sent to the hosts until the agents have been started
SECRETS: Final = "secrets.json"  # what another start needs: mode 0600, gone with the verdict


@dataclass(frozen=True)
class Handle:
    """One start of a run's agents.

    A node of the plan keeps its number through all starts. A start's own nodes are numbered anew: without those that
    are lost, and with the machine first that has the newest checkpoint.
    """

    state: HandleStatus
    start: int
    hosts: tuple[Host, ...]
    agents: dict[int, tuple[int, int]]  # node -> (pid, start time)
    plan_nodes: tuple[int, ...]  # which of the plan's nodes each of them is
    former: tuple[Host, ...] = ()  # of earlier starts, which take no part in this one

    def write(self, run: RunDir) -> None:
        """Keep it with the run."""
        agents = {str(node): {"pid": pid, "started": started} for node, (pid, started) in self.agents.items()}
        hosts = [host.to_json() for host in self.hosts]
        values = {"state": self.state, "start": self.start, "hosts": hosts, "agents": agents, "seats": self.plan_nodes}
        run.write("handle.json", {**values, "former": [host.to_json() for host in self.former]})

    @staticmethod
    def of_start(before: Handle | None, start: int, hosts: tuple[Host, ...], plan_nodes: tuple[int, ...]) -> Handle:
        """Return the handle of a start that is about to be made, after the one before it."""
        known = (*before.former, *before.hosts) if before is not None else ()
        now = set(hosts)
        former = tuple(dict.fromkeys(host for host in known if host not in now))
        return Handle(HandleStatus.INTENT, start, hosts, {}, plan_nodes, former)

    @property
    def by_plan_node(self) -> dict[int, Host]:
        """Return the machine of each of the plan's nodes that takes part."""
        return dict(zip(self.plan_nodes, self.hosts, strict=True))

    def hosts_of_plan(self, settings: SshSettings) -> dict[int, Host]:
        """Return the machine of each of the plan's nodes, also of a node that this start does without."""
        return {number: self.by_plan_node.get(number, host) for number, host in enumerate(settings.hosts)}

    def free_machines(self, settings: SshSettings) -> list[Host]:
        """Return the profile's machines that no node uses: first the spares, last those of former starts.

        A machine that a spare has replaced is such a machine: it may be back by now.
        """
        taken = set(self.hosts_of_plan(settings).values())
        free = [host for host in (*settings.spares, *settings.hosts) if host not in taken]
        return sorted(free, key=lambda host: host in self.former)


def read_handle(run: RunDir) -> Handle | None:
    """Return the run's handle; None before there is one; where it is damaged, the profile's hosts, with no agents."""
    try:
        return run.made_of("handle.json", _handle_of)
    except (StoreError, KeyError, TypeError, ValueError, AttributeError):
        profile = profile_of(run)
        if not profile:
            return None
        return first_handle(SshSettings.of(profile))


def first_handle(settings: SshSettings) -> Handle:
    """Return the handle of a first start on the profile's hosts, with no agents."""
    return Handle(HandleStatus.SUBMITTED, 0, settings.hosts, {}, tuple(range(len(settings.hosts))))


def _handle_of(run: RunDir) -> Handle | None:
    data = run.read("handle.json")
    if data is None:
        return None
    agents = {int(node): (int(each["pid"]), int(each["started"])) for node, each in data["agents"].items()}
    hosts = tuple(map(Host.from_json, data["hosts"]))
    plan_nodes = tuple(map(int, data.get("seats") or range(len(hosts))))
    if len(plan_nodes) != len(hosts):
        raise ValueError("a node of the plan for each host")
    former = tuple(map(Host.from_json, data.get("former", ())))
    return Handle(HandleStatus(data["state"]), data["start"], hosts, agents, plan_nodes, former)

"""Which machine each node of an SSH run is: from its profile, and from the handle once a host has been replaced."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from orchestrator.address import Address
from orchestrator.errors import BackendError, StoreError
from orchestrator.store import RunDir

AT_ONCE: Final = 32
T = TypeVar("T")


@dataclass(frozen=True)
class Host:
    """One machine of a profile: how to reach it, what the other nodes call it, and its own interpreter."""

    address: Address
    addr: str | None = None
    python: str | None = None

    @property
    def name(self) -> str:
        """What people call it."""
        return self.address.host

    def to_json(self) -> dict[str, Any]:
        """The host as JSON types."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Host:
        """The host that `to_json` gave."""
        return Host(Address(**data["address"]), data["addr"], data["python"])


def hosts_of(profile: Mapping[str, Any]) -> tuple[list[Host], list[Host]]:
    """(the hosts of the nodes, the spares) of an ssh profile as JSON types."""

    def host(entry: Mapping[str, Any]) -> Host:
        own = {name: entry.get(name) or profile.get(name) for name in ("user", "port", "key", "jump")}
        return Host(Address(entry["host"], **own), entry.get("addr"), entry.get("python"))

    nodes = [host(entry) for entry in profile["hosts"]]
    count = profile.get("nodes") or len(nodes)
    return nodes[:count], [host(entry) for entry in profile.get("spares") or ()]


@dataclass(frozen=True)
class Handle:
    """What is known of a run's agents: whose machines they are on, which start it is, and their pids."""

    state: str  # intent | submitted
    start: int
    hosts: tuple[Host, ...]
    agents: dict[int, tuple[int, int]]  # node -> (pid, start time)
    seats: tuple[int, ...]  # which of the plan's nodes each of them is

    def write(self, run: RunDir) -> None:
        """Keep it with the run."""
        agents = {str(node): {"pid": pid, "started": started} for node, (pid, started) in self.agents.items()}
        hosts = [host.to_json() for host in self.hosts]
        values = {"state": self.state, "start": self.start, "hosts": hosts, "agents": agents, "seats": self.seats}
        run.write("handle.json", values)

    @property
    def seated(self) -> dict[int, Host]:
        """The machine of each of the plan's nodes that takes part."""
        return dict(zip(self.seats, self.hosts, strict=True))


def read_handle(run: RunDir) -> Handle | None:
    """The run's handle; None before there is one; where it is damaged, the hosts of the profile, with no agents."""
    try:
        data = run.read("handle.json")
        if data is None:
            return None
        agents = {int(node): (int(each["pid"]), int(each["started"])) for node, each in data["agents"].items()}
        hosts = tuple(map(Host.from_json, data["hosts"]))
        seats = tuple(map(int, data.get("seats") or range(len(hosts))))
        if len(seats) != len(hosts):
            raise ValueError("a seat for each host")
        return Handle(data["state"], data["start"], hosts, agents, seats)
    except (StoreError, KeyError, TypeError, ValueError, AttributeError):
        profile = (run.read("run.json") or {}).get("profile")
        if not isinstance(profile, dict):
            return None
        hosts = tuple(hosts_of(profile)[0])
        return Handle("submitted", 0, hosts, {}, tuple(range(len(hosts))))


def workdir_of(profile: Mapping[str, Any]) -> str:
    """orch's folder on the nodes, `~` unexpanded."""
    return str(profile.get("workdir") or "~/.orch")


def remote_folder(run: RunDir) -> str:
    """The run's own folder in orch's folder on the nodes, `~` unexpanded."""
    return f"{workdir_of((run.read('run.json') or {}).get('profile') or {})}/runs/{run.run_id}"


def on_all(work: Callable[[int, Host], T], hosts: Mapping[int, Host]) -> tuple[dict[int, T], dict[int, BackendError]]:
    """(what came of it, what went wrong) for every node, all at once."""
    done: dict[int, T] = {}
    failed: dict[int, BackendError] = {}

    def one(node: int) -> None:
        try:
            done[node] = work(node, hosts[node])
        except BackendError as error:
            failed[node] = error

    with ThreadPoolExecutor(min(AT_ONCE, max(1, len(hosts)))) as pool:
        for future in [pool.submit(one, node) for node in hosts]:
            future.result()
    return done, failed


def all_of(failed: Mapping[int, BackendError]) -> BackendError:
    """One error for those of several nodes: a line each, and every hint once."""
    errors = [failed[node] for node in sorted(failed)]
    hints = dict.fromkeys(error.hint for error in errors if error.hint)
    transient = all(error.transient for error in errors)
    return BackendError("\n".join(error.message for error in errors), "\n".join(hints), transient=transient)


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest committed checkpoint of a folder here; None when there is none."""
    found = [path for path in folder.glob("step_*") if (path / "COMMIT").exists() and path.name[5:].isdigit()]
    return max(found, key=lambda path: int(path.name[5:]), default=None)


def task_json(task: Any) -> bytes:
    """A task as it travels."""
    return json.dumps(task.to_json()).encode()

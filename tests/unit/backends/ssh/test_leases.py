"""The places of a start are held on all hosts or on none, however long one of them is waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.settings import Host, SshSettings
from orchestrator.backends.ssh.leases import leased
from orchestrator.errors import BackendError
from orchestrator.protocol.task import NodeTask, Program
from orchestrator.runs.store import RunDir
from orchestrator.transport.address import Address


class Machines:
    """Hosts that answer as orch's server does; `busy` says how often one has nothing free before it has."""

    def __init__(self, **busy: int) -> None:
        self.busy, self.held, self.asked, self.cut = busy, dict[str, list[str]](), list[str](), dict[int, str]()

    def session(self, address: Address, workdir: str) -> Any:
        return Server(self, address.host)


class Server:
    def __init__(self, machines: Machines, name: str) -> None:
        self.machines, self.name = machines, name

    def call(self, do: str, **values: Any) -> tuple[dict[str, Any], bytes]:
        here = self.machines
        here.asked.append(f"{do} {self.name}")
        if do == "still_held":
            return {"places": here.held.get(self.name, [])}, b""
        if do == "release":
            here.held.pop(self.name, None)
            return {}, b""
        if lost := here.cut.pop(len(here.asked), ""):  # its connection is cut, and its server is another one
            here.held.pop(lost)
        if here.busy[self.name]:
            here.busy[self.name] -= 1
            return {"places": None, "why": "only 0 of 1 slots are free"}, b""
        here.held[self.name] = ["slot-0"]
        return {"places": ["slot-0"]}, b""


def start(machines: Machines, tmp_path: Path, *, waits: bool = True, **profile: Any) -> dict[int, list[str]]:
    """Take the places of a start on b and a, and return them."""
    run, names = RunDir(tmp_path), sorted(machines.busy, reverse=True)
    run.write("run.json", {"waits": waits})
    hosts = {node: Host(Address(name)) for node, name in enumerate(names)}
    tasks = tuple(
        NodeTask("r-1", node, len(names), tuple(names), 1, "/r", "/c", Program("script", "x"), "fork", "gloo", "python",
                 (), ())
        for node in hosts
    )  # fmt: skip
    settings = SshSettings.of({"hosts": [{"host": name} for name in names], "slots": 1, **profile})
    hellos = {node: {"gpus": 0} for node in hosts}
    with leased(machines, run, settings, hosts, tasks, hellos) as places:  # type: ignore[arg-type]
        return places


def test_hosts_are_asked_in_the_order_of_their_names(tmp_path: Path) -> None:
    machines = Machines(a=0, b=0)
    assert start(machines, tmp_path) == {0: ["slot-0"], 1: ["slot-0"]}
    assert machines.asked == ["lease a", "lease b"]


def test_what_is_held_is_looked_at_while_another_host_is_waited_for(tmp_path: Path) -> None:
    machines = Machines(a=0, b=2)
    assert start(machines, tmp_path) == {0: ["slot-0"], 1: ["slot-0"]}
    assert machines.asked == ["lease a", "lease b", "still_held a", "lease b", "still_held a", "lease b"]


def test_a_place_that_was_lost_meanwhile_is_taken_again_and_none_is_kept_without_it(tmp_path: Path) -> None:
    machines = Machines(a=0, b=2)
    machines.cut[2] = "a"
    assert start(machines, tmp_path) == {0: ["slot-0"], 1: ["slot-0"]}
    assert machines.asked[:5] == ["lease a", "lease b", "still_held a", "release a", "lease a"]
    assert sorted(machines.held) == ["a", "b"]


def test_who_does_not_wait_is_told_who_holds_it_and_keeps_nothing(tmp_path: Path) -> None:
    machines = Machines(a=0, b=1)
    with pytest.raises(BackendError, match="b: only 0 of 1 slots are free") as said:
        start(machines, tmp_path, waits=False)
    assert "--wait-for-gpus" in said.value.hint
    assert machines.held == {}


def test_a_site_without_leases_asks_nobody(tmp_path: Path) -> None:
    machines = Machines(a=1, b=1)
    assert start(machines, tmp_path, leases=False) == {0: [], 1: []}
    assert machines.asked == []

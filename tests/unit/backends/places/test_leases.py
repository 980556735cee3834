"""The places of a start are held on all hosts or on none; a run that finds none free gets its place in the queue."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.agents.start import Start
from orchestrator.backends.places.waiting import Waiting
from orchestrator.backends.settings import AgentsSettings, Host
from orchestrator.errors import BackendError, PlacesTakenError
from orchestrator.protocol.task import NodeTask, Program
from orchestrator.runs.store import RunDir
from orchestrator.transport.address import Address
from tests.machines import FakeMachine, FakePool, Health
from tests.unit.profiles import profile_of, recorded

NOW = 1_700_000_000 * 10**9


VERBS = ("look_at_queue", "take_ticket", "renew_ticket", "drop_ticket", "still_held", "release", "lease")


class Machines(FakePool):
    """Hosts that answer as orch's server does; `busy` says how often one has nothing free before it has."""

    def __init__(self, **busy: int) -> None:
        self.busy, self.held, self.asked, self.cut = busy, dict[str, list[str]](), list[str](), dict[int, str]()
        self.tickets: dict[str, list[dict[str, Any]]] = {name: [] for name in busy}
        self.fakes = {each: FakeMachine(each, {do: partial(self._answer, do, each) for do in VERBS}) for each in busy}
        super().__init__(*self.fakes.values())

    def _answer(self, do: str, name: str, **values: Any) -> dict[str, Any]:
        self.asked.append(f"{do} {name}")
        if do == "look_at_queue":
            holder = {"uid": 2, "user": "bob", "run": "theirs", "since": 1} if self.busy[name] else None
            return {"places": {"slot-0": holder}, "tickets": self.tickets[name], "uid": 1, "now": NOW}
        if do == "take_ticket":
            ticket = {"uid": 1, "user": "alice", "run": values["run_id"], "needs": values["count"]}
            self.tickets[name].append({**ticket, "number": values["number"], "made": NOW, "age": 0.0})
            return {"taken": True}
        if do == "renew_ticket":
            return {"renewed": True}
        if do == "drop_ticket":
            self.tickets[name].clear()
            return {"dropped": 1}
        if do == "still_held":
            return {"places": self.held.get(name, [])}
        if do == "release":
            self.held.pop(name, None)
            return {}
        if lost := self.cut.pop(len(self.asked), ""):  # its connection is cut, and its server is another one
            self.held.pop(lost)
        if self.busy[name]:
            self.busy[name] -= 1
            return {"places": None, "why": "only 0 of 1 slots are free"}
        self.held[name] = ["slot-0"]
        return {"places": ["slot-0"]}


def start(
    machines: Machines, tmp_path: Path, *, number: int = 0, waits: bool = True, **profile: Any
) -> dict[int, list[str]]:
    """Take the places of the run's first start, or a later one, on b and a, and return them."""
    run, names = RunDir(tmp_path), sorted(machines.busy, reverse=True)
    run.write("run.json", {"waits": waits})
    hosts = {node: Host(Address(name)) for node, name in enumerate(names)}
    tasks = tuple(
        NodeTask("r-1", node, len(names), tuple(names), 1, "/r", "/c", Program("script", "x"), "fork", "gloo", "python",
                 (), (), start=number)
        for node in hosts
    )  # fmt: skip
    settings = AgentsSettings.of(profile_of(hosts=list(names), slots=1, **profile))
    hellos = {node: {"devices": [], "visible": None} for node in hosts}
    with Start(machines, run, settings, hosts).with_places(tasks, hellos, began=False) as (_, places):
        return places


def test_hosts_are_asked_in_the_order_of_their_names(tmp_path: Path) -> None:
    machines = Machines(a=0, b=0)
    assert start(machines, tmp_path) == {0: ["slot-0"], 1: ["slot-0"]}
    assert sorted(machines.asked[:2]) == ["look_at_queue a", "look_at_queue b"]
    assert machines.asked[2:] == ["lease a", "lease b"]


def test_what_is_held_is_looked_at_while_another_host_is_waited_for(tmp_path: Path) -> None:
    machines = Machines(a=0, b=2)
    assert start(machines, tmp_path, number=1) == {0: ["slot-0"], 1: ["slot-0"]}
    assert machines.asked == ["lease a", "lease b", "still_held a", "lease b", "still_held a", "lease b"]


def test_a_place_that_was_lost_meanwhile_is_taken_again_and_none_is_kept_without_it(tmp_path: Path) -> None:
    machines = Machines(a=0, b=2)
    machines.cut[2] = "a"
    assert start(machines, tmp_path, number=1) == {0: ["slot-0"], 1: ["slot-0"]}
    assert machines.asked[:5] == ["lease a", "lease b", "still_held a", "release a", "lease a"]
    assert sorted(machines.held) == ["a", "b"]


def test_who_does_not_wait_is_told_who_holds_it_and_keeps_nothing(tmp_path: Path) -> None:
    machines = Machines(a=0, b=1)
    with pytest.raises(BackendError, match="b: its only slot is taken, 1 is needed: ") as said:
        start(machines, tmp_path, waits=False)
    assert "--no-wait" in said.value.hint
    assert (machines.held, machines.tickets) == ({}, {"a": [], "b": []})
    assert not (tmp_path / "queue.json").exists()


def test_who_waits_has_a_ticket_of_one_number_on_each_host_and_holds_nothing(tmp_path: Path) -> None:
    machines = Machines(a=0, b=1)
    with pytest.raises(PlacesTakenError):
        start(machines, tmp_path)
    assert machines.held == {}
    assert {each["number"] for found in machines.tickets.values() for each in found} == {NOW}
    kept = json.loads((tmp_path / "queue.json").read_text())
    assert (kept["position"], kept["counts"]) == (1, {"0": 1, "1": 1})
    assert kept["why"].startswith("number 1 in the queue: bob (theirs) holds 1 place of b since 1970")
    machines.busy["b"] = 0
    assert start(machines, tmp_path) == {0: ["slot-0"], 1: ["slot-0"]}


def test_what_is_free_is_left_to_who_was_there_before(tmp_path: Path) -> None:
    machines = Machines(a=0)
    ticket = {"uid": 2, "user": "bob", "run": "first-abc234", "needs": 1, "number": NOW - 5, "made": NOW, "age": 3.0}
    machines.tickets["a"].append(ticket)
    with pytest.raises(BackendError, match=r"1 of 1 slots are free, and others have waited longer for them: run first"):
        start(machines, tmp_path, waits=False)
    with pytest.raises(PlacesTakenError):
        start(machines, tmp_path)
    assert "number 2 in the queue, after bob (first-abc234)" in (tmp_path / "queue.json").read_text()
    ticket["age"] = 61.0
    assert start(machines, tmp_path) == {0: ["slot-0"]}


@pytest.mark.parametrize("health", [Health.HUNG, Health.SLOW, Health.DEAD])
@pytest.mark.parametrize(("number", "since"), [(0, "look_at_queue"), (0, "lease"), (1, "lease"), (1, "still_held")])
def test_nothing_is_held_after_a_host_did_not_answer(tmp_path: Path, health: Health, number: int, since: str) -> None:
    machines = Machines(a=0, b=1 if since == "still_held" else 0)
    unwell = "a" if since == "still_held" else "b"
    machines.fakes[unwell].health, machines.fakes[unwell].since = health, since
    with pytest.raises(BackendError, match=f"^{unwell}: ") as refused:
        start(machines, tmp_path, number=number)
    assert refused.value.transient
    assert machines.held.keys() <= {unwell}  # its server releases them when the connection is closed
    assert not any(machines.tickets.values())
    assert not (tmp_path / "queue.json").exists()
    if since != "look_at_queue":
        assert ["release" in fake.verbs() for fake in machines.fakes.values()] == [True, True]


def waiting(machines: Machines, tmp_path: Path) -> Waiting:
    """Start a run that must wait for a, which is busy, and return its wait as another process reads it."""
    with pytest.raises(BackendError):
        start(machines, tmp_path)
    names = sorted(machines.busy, reverse=True)
    (tmp_path / "run.json").write_text(json.dumps(recorded(hosts=list(names))))
    found = Waiting.recorded(machines, RunDir(tmp_path))
    assert found is not None
    return found


@pytest.mark.parametrize("health", [Health.HUNG, Health.SLOW, Health.DEAD])
def test_a_run_keeps_its_place_in_the_queue_and_renews_nothing_while_a_host_does_not_answer(
    tmp_path: Path, health: Health
) -> None:
    machines = Machines(a=1, b=0)
    wait = waiting(machines, tmp_path)
    for found in machines.tickets.values():
        found[0]["age"] = 50.0
    before, machines.fakes["b"].health = json.loads((tmp_path / "queue.json").read_text()), health
    with pytest.raises(BackendError, match=r"^b: "):
        wait.join()
    kept = json.loads((tmp_path / "queue.json").read_text())
    assert kept["why"].startswith("its turn can't come, and its place in the queue is kept: b: ")
    assert {**kept, "why": ""} == {**before, "why": ""}
    assert "renew_ticket" not in machines.fakes["a"].verbs()
    machines.fakes["b"].health, machines.busy["a"] = Health.WELL, 0
    assert wait.join()
    assert all("renew_ticket" in fake.verbs() for fake in machines.fakes.values())


def test_a_host_with_a_full_disk_is_named_and_holds_nothing(tmp_path: Path) -> None:
    machines = Machines(a=1, b=0)
    machines.fakes["b"].health = Health.FULL
    with pytest.raises(BackendError, match=r"^b: No space left on device$") as refused:
        start(machines, tmp_path)
    assert not refused.value.transient
    assert machines.held == {}
    waiting(machines, tmp_path).leave()  # whoever ends the run finds the record of its wait
    assert machines.tickets == {"a": [], "b": []}


def test_tickets_are_dropped_on_all_hosts_that_answer(tmp_path: Path) -> None:
    machines = Machines(a=1, b=0)
    wait = waiting(machines, tmp_path)
    machines.fakes["b"].health = Health.HUNG
    wait.leave()
    assert {name: len(found) for name, found in machines.tickets.items()} == {"a": 0, "b": 1}
    assert (tmp_path / "queue.json").exists()  # so that whoever ends the run tries again
    machines.fakes["b"].health = Health.WELL
    wait.leave()
    assert not any(machines.tickets.values())
    assert not (tmp_path / "queue.json").exists()


def test_a_site_without_leases_asks_nobody(tmp_path: Path) -> None:
    machines = Machines(a=1, b=1)
    assert start(machines, tmp_path, leases=False) == {0: [], 1: []}
    assert machines.asked == []

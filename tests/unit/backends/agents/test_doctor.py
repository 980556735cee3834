"""What doctor and nodes conclude from the machines' answers, and how they show it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends import backend_for
from orchestrator.backends.agents import doctor
from orchestrator.backends.agents.holdings import holdings
from orchestrator.backends.base import Check
from orchestrator.backends.settings import LEAST_FREE, AgentsSettings
from orchestrator.cli.render import results
from orchestrator.errors import BackendError, PythonMissingError
from orchestrator.specs.documents.loader import load_profile
from orchestrator.transport.address import HERE, Address
from orchestrator.transport.machine import Machine
from tests.machines import FakeMachine, FakePool, Health, Told
from tests.profiles import valid_profile
from tests.unit.profiles import profile_of

HELLO = {"host": "h", "python": "3.11.2", "path": "/usr/bin/python3",
         "uid": 1, "home": "/home/me", "workdir": "/home/me/.orch", "cores": 8,
         "gpus": 0, "addresses": ["10.0.0.1", "127.0.0.1"], "time": 0.0, "free": 1 << 40, "memory": 1 << 34,
         "shm": 1 << 33, "lacks_tls": ""}  # fmt: skip


REACHED = {"addr": "10.0.0.1", "own": "10.0.0.2", "interface": "ib0"}
ANSWERS: dict[str, Told] = {
    "hash_environments": {"environments": {}},
    "listen": {"port": 20001},
    "examine_gpus": {"gpus": [], "nvml_problem": ""},
    "look_at_queue": {
        "places": {"gpu-0": {"uid": 1001, "user": "bob", "run": "r-1", "since": 1}, "gpu-1": None},
        "tickets": [], "uid": 1000, "now": 1,
    },
}  # fmt: skip


class Machines(FakePool):
    """The named hosts; every other host is out of reach."""

    def __init__(self, torch: dict[str, str | None], hello: dict[str, Any], reaches: dict[str, bool]) -> None:
        self.fakes = {name: FakeMachine(name, answers=dict(ANSWERS)) for name in torch}
        super().__init__(*self.fakes.values())
        self.broken: dict[str, BackendError] = {}
        for name, machine in self.fakes.items():
            machine.answers |= {
                "hello": lambda name=name, **_: {**HELLO, "host": name, "time": time.time(), **hello},
                "interpreter": {"python": "3.11.2", "torch": torch[name]},
                "probe": REACHED if reaches.get(name, True) else {"addr": None, "problems": ["10.0.0.1: timed out"]},
            }

    def session(self, address: Address, workdir: str) -> Machine:
        if address.host in self.broken:
            raise self.broken[address.host]
        return super().session(address, workdir)


def found(machines: Machines, **profile: Any) -> dict[tuple[str, str], Check]:
    values = {"kind": "ssh", "name": "lab", "hosts": ["a", "b", "c"], "nodes": 3, "nproc_per_node": 4, **profile}
    checks = doctor.examine(valid_profile(values), machines)
    made = {check.what for check in checks}
    assert made - {doctor.ENVIRONMENTS, "gpus"} == set(doctor.CHECKS)
    assert len(checks) == 3 * len(made)
    return {(check.host, check.what): check for check in checks}


def test_nothing_stands_in_the_way() -> None:
    checks = found(Machines({"a": "2.9", "b": "2.9", "c": "2.9"}, {}, {}))
    assert {check.level for check in checks.values()} == {"ok"}
    assert checks["b", "master"].value == "10.0.0.1:20001 from 10.0.0.2, ib0"
    assert results.doctor_page(list(checks.values())).endswith("\nall checks passed")


def test_a_disk_on_which_a_submit_is_refused_fails() -> None:
    for free, level in ((6 << 20, "fail"), (LEAST_FREE, "warn"), (1 << 40, "ok")):
        checks = found(Machines(dict.fromkeys("abc", "2.9"), {"free": free}, {}))
        assert checks["a", "workdir"].level == level


def test_a_machine_that_is_listed_twice_is_refused() -> None:
    checks = found(Machines(dict.fromkeys("abc", "2.9"), {"host": "n1"}, {}))
    assert [checks[host, "ssh"].level for host in "abc"] == ["ok", "fail", "fail"]
    assert checks["b", "ssh"].value == "it is the same machine as a (10.0.0.1)"


def test_a_way_between_neighbours_is_tried_as_a_start_tries_it() -> None:
    machines = Machines(dict.fromkeys("abc", "2.9"), {}, {})
    lost = {"addr": None, "problems": ["10.0.0.3: timed out"]}
    machines.fakes["b"].answers["probe"] = lambda addrs, **_: lost if addrs[0] == "10.0.0.3" else REACHED
    hosts = [{"host": name, "addr": f"10.0.0.{number}"} for number, name in enumerate("abc", 1)]
    checks = found(machines, hosts=hosts)
    assert [checks[host, "master"].level for host in "abc"] == ["ok", "fail", "ok"]
    assert checks["b", "master"].value == "it can't reach c, its neighbour: 10.0.0.3: timed out"
    assert checks["b", "master"].hint == "let firewalls pass connections from b to c on the `ports` of the profile"


def test_each_failure_is_said_with_its_remedy() -> None:
    machines = Machines({"a": "2.9", "b": None}, {"shm": 64 << 20, "gpus": 2}, {"b": False})
    checks = found(machines)
    assert checks["c", "ssh"].level == "fail"
    assert {checks["c", what].level for what in doctor.CHECKS[1:]} == {"-"}
    assert [checks["a", what].level for what in ("shm", "ranks", "training")] == ["warn", "warn", "ok"]
    assert (checks["b", "training"].level, checks["b", "master"].level) == ("fail", "fail")
    page = results.doctor_page(list(checks.values()))
    assert "fail  node 1 (b), training: python3: python 3.11.2, torch missing\n      install torch for python3" in page
    assert (
        "fail  node 1 (b), master: 10.0.0.1: timed out\n      let firewalls pass connections from b to port 20001 of a"
        in page
    )
    assert "fail  node 2 (c), ssh: c: timed out\n      try: ssh c" in page
    assert page.endswith("3 of 30 checks failed")


def test_a_torch_that_differs_from_the_others_is_found() -> None:
    checks = found(Machines({"a": "2.9", "b": "2.8", "c": "2.9"}, {}, {}))
    assert [checks[host, "same versions"].level for host in "abc"] == ["ok", "fail", "ok"]
    assert checks["b", "same versions"].hint == "the other hosts have torch 2.9: install the same version"


def test_an_environment_that_is_altered_or_differs_from_the_others_is_found() -> None:
    machines = Machines(dict.fromkeys("abc", "2.9"), {}, {})

    def installed(**environments: dict[str, list[str | None]]) -> None:
        for name, machine in machines.fakes.items():
            machine.answers["hash_environments"] = {"environments": environments.get(name, {})}

    installed(
        a={"k" * 64: ["1", None]},
        b={"k" * 64: ["2", None]},
        c={"k" * 64: ["1", None], "l" * 64: ["3", "l is not as it was installed: x.py"]},
    )
    checks = found(machines)
    said = {host: checks[host, doctor.ENVIRONMENTS] for host in "abc"}
    assert (said["a"].level, said["a"].value) == ("ok", "1, as installed")
    assert (said["b"].level, "kkkkkkkkkkkk holds other files" in said["b"].value) == ("fail", True)
    assert (said["c"].level, said["c"].value) == ("fail", "l is not as it was installed: x.py")
    installed(a={"k" * 64: ["2", "k is not as it was installed: x.py"]}, b={"k" * 64: ["1", None]})
    checks = found(machines)
    assert [checks[host, doctor.ENVIRONMENTS].level for host in "abc"] == ["fail", "ok", "-"]


def test_a_python_that_can_not_prove_itself_is_found_where_nodes_are_several() -> None:
    machines = Machines({"a": "2.9", "b": "2.9", "c": "2.9"}, {"lacks_tls": "its Python has no ssl module"}, {})
    checks = found(machines)
    assert checks["b", "python3"].level == "fail"
    assert checks["b", "python3"].value.startswith(
        "3.11.2, /usr/bin/python3; its Python has no ssl module, by which nodes authenticate"
    )
    alone = valid_profile({"kind": "ssh", "name": "lab", "hosts": ["a"], "nproc_per_node": 4})
    levels = {check.what: check.level for check in doctor.examine(alone, machines)}
    assert levels["python3"] == "ok"


def test_a_python3_that_does_not_work_is_no_failure_of_ssh() -> None:
    machines = Machines({"a": "2.9", "c": "2.9"}, {}, {})
    said = "b: its python3 does not start orch's server: it ended with code 1"
    machines.broken["b"] = PythonMissingError(said, "try it")
    checks = found(machines)
    assert (checks["b", "ssh"].level, checks["b", "python3"].level) == ("ok", "fail")
    assert checks["b", "python3"].value.endswith("it ended with code 1")


@pytest.mark.parametrize("since", ["hello", "hash_environments", "interpreter"])
@pytest.mark.parametrize("health", [Health.HUNG, Health.SLOW])
def test_a_machine_that_does_not_answer_in_time_is_out_of_reach_and_nothing_else_is_blamed(
    health: Health, since: str
) -> None:
    machines = Machines(dict.fromkeys("abc", "2.9"), {}, {})
    machines.fakes["b"].health, machines.fakes["b"].since = health, since
    checks = found(machines)
    assert {what for (host, what), check in checks.items() if host == "b" and check.level != "-"} == {"ssh"}
    assert checks["b", "ssh"].level == "fail"
    assert checks["b", "ssh"].value.startswith("b: no answer within ")
    assert "log in to this host" in checks["b", "ssh"].hint
    assert {check.level for (host, what), check in checks.items() if host != "b"} == {"ok"}


@pytest.mark.parametrize("since", ["listen", "probe"])
def test_a_machine_that_stops_answering_while_ways_are_tried_is_out_of_reach(since: str) -> None:
    machines = Machines(dict.fromkeys("abc", "2.9"), {}, {})
    machines.fakes["b"].health, machines.fakes["b"].since = Health.HUNG, since
    checks = found(machines)
    assert {at for at, check in checks.items() if check.level == "fail"} == {("b", "ssh")}
    assert checks["b", "ssh"].value == "b: no answer within 60 s"
    assert "ports" not in checks["b", "ssh"].hint


def test_a_full_disk_keeps_no_check_from_being_made() -> None:
    machines = Machines(dict.fromkeys("abc", "2.9"), {}, {})
    for machine in machines.fakes.values():
        machine.health = Health.FULL
    assert {check.level for check in found(machines).values()} == {"ok"}


def test_an_interface_that_a_machine_lacks_fails_its_way_to_node_0() -> None:
    checks = found(Machines({"a": "2.9", "b": "2.9", "c": "2.9"}, {"interface": "it has no network interface x"}, {}))
    assert {(checks[host, "master"].level, checks[host, "master"].value) for host in "abc"} == {
        ("fail", "it has no network interface x")
    }


def test_a_clock_that_differs_is_no_failure() -> None:
    checks = found(Machines({"a": "2.9", "b": "2.9", "c": "2.9"}, {"time": 0.0}, {}))
    assert {checks[host, "clock"].level for host in "abc"} == {"warn"}


def test_who_holds_what_is_shown_for_every_host() -> None:
    settings = AgentsSettings.of(profile_of(hosts=["a"], spares=["b"]))
    rows = holdings(settings, Machines({"a": "2.9"}, {"gpus": 2}, {}))
    page = results.nodes_page(rows).splitlines()
    assert page[1].split("  ")[0] == "a"
    assert page[1].endswith("gpu-0 bob: r-1, gpu-1 free")
    assert page[2].startswith("b (spare)")
    assert page[2].endswith("b: timed out")


def test_a_machine_that_does_not_answer_in_time_is_shown_with_the_reason() -> None:
    settings = AgentsSettings.of(profile_of(hosts=["a", "b"]))
    machines = Machines(dict.fromkeys("ab", "2.9"), {}, {})
    machines.fakes["b"].health = Health.HUNG
    rows = holdings(settings, machines)
    assert ["problem" in row for row in rows] == [False, True]
    assert rows[1]["problem"] == "b: no answer within 60 s"


def test_hosts_that_are_alike_share_a_line() -> None:
    free = {"spare": False, "cores": 8, "gpus": 1, "places": {"gpu-0": None}}
    found = [{**free, "host": f"n{number}", "free": (9 + number) << 30} for number in range(1, 63)]
    held = {**free, "host": "n63", "free": 9 << 30, "places": {"gpu-0": {"user": "bob", "run": "r-1"}}}
    page = results.nodes_page([*found, held]).splitlines()
    assert [" ".join(line.split()) for line in page[1:]] == [
        "n[1-62] 8 1 from 10.0 GiB gpu-0 free", "n63 8 1 9.0 GiB gpu-0 bob: r-1"
    ]  # fmt: skip


def here(
    folder: Path, torch: str | None, monkeypatch: pytest.MonkeyPatch, *sets: str, **hello: Any
) -> dict[str, Check]:
    """The checks of this machine for a local profile, whose interpreter has this torch."""
    (folder / "p.yaml").write_text("kind: local\nnproc_per_node: 2\npython: /opt/python\n")
    monkeypatch.setenv("ORCH_HOME", str(folder / "home"))
    machine = FakeMachine(HERE, answers=dict(ANSWERS))
    machine.answers["hello"] = lambda workdir, **_: {**HELLO, "time": time.time(), "workdir": workdir, **hello}
    machine.answers["interpreter"] = {"python": "3.11.2", "torch": torch}
    checks = doctor.examine(load_profile(str(folder / "p.yaml"), sets=sets), FakePool(machine))
    return {check.what: check for check in checks}


def test_this_machine_is_checked_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = here(tmp_path, "2.9.0", monkeypatch, cores=2)
    assert set(rows) == {"python3", "workdir", "ranks", "shm", "training"}
    assert (rows["training"].level, rows["training"].host) == ("ok", os.uname().nodename)
    assert rows["training"].value == "/opt/python: python 3.11.2, torch 2.9.0"
    assert rows["python3"].value == "3.11.2, /usr/bin/python3"
    assert rows["ranks"].value == "2 on 0 GPUs, 2 cores"
    assert rows["workdir"].value.startswith(f"{tmp_path}/home, ")


def test_each_lack_of_this_machine_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = here(tmp_path, None, monkeypatch, "profile.nodes=3", cores=2, free=LEAST_FREE, shm=1)
    assert {what: row.level for what, row in rows.items()} == {
        "python3": "ok", "workdir": "warn", "ranks": "warn", "shm": "warn", "training": "fail",
    }  # fmt: skip
    assert all(row.hint for row in rows.values() if row.level != "ok")
    assert rows["ranks"].value == "6 on 0 GPUs, 2 cores"  # of all nodes together
    assert rows["training"].value.endswith("torch missing")


def test_this_machines_own_answers_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs neither a connection nor a folder that is there already."""
    (tmp_path / "p.yaml").write_text("kind: local\npython: /nowhere/python\n")
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    checks = backend_for("local").doctor(load_profile(str(tmp_path / "p.yaml")), on_node=False)
    failed = {check.what: check.value for check in checks if check.level == "fail"}
    assert list(failed) == ["training"]
    assert "/nowhere/python" in failed["training"]

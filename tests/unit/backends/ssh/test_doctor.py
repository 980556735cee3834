"""What doctor and nodes make of machines' answers, and how they show it."""

from __future__ import annotations

from typing import Any

from orchestrator.backends.base import Check
from orchestrator.backends.remote import upload
from orchestrator.backends.settings import SshSettings
from orchestrator.backends.ssh import doctor
from orchestrator.backends.ssh.holdings import holdings
from orchestrator.cli.render import results
from orchestrator.errors import BackendError, PythonMissingError
from orchestrator.specs.profile import PROFILE, SshProfile
from orchestrator.transport.address import Address

HELLO = {"host": "h", "python": "3.11.2", "uid": 1, "home": "/home/me", "workdir": "/home/me/.orch", "cores": 8,
         "gpus": 0, "addresses": ["10.0.0.1", "127.0.0.1"], "time": 0.0, "free": 1 << 40, "memory": 1 << 34,
         "shm": 1 << 33, "lacks_tls": ""}  # fmt: skip


class Machines:
    """Answers as the named hosts would; one that is missing is out of reach."""

    def __init__(self, torch: dict[str, str | None], hello: dict[str, Any], reaches: dict[str, bool]) -> None:
        self.torch, self.hello, self.reaches = torch, hello, reaches
        self.broken: PythonMissingError | None = None
        self.environments: dict[str, dict[str, list[str | None]]] = {}
        self.cut: set[tuple[str, str]] = set()  # (machine, address): no packet gets from here to there

    def session(self, address: Address, workdir: str) -> Any:
        if address.host not in self.torch:
            raise self.broken or BackendError(f"{address.host}: no answer", f"try: ssh {address.host}")
        return Answers(self, address.host)


class Answers:
    def __init__(self, machines: Machines, name: str) -> None:
        self.machines, self.name = machines, name

    def call(self, do: str, **values: Any) -> tuple[dict[str, Any], bytes]:
        if do == "hello":
            import time

            return {**HELLO, "host": self.name, "time": time.time(), **self.machines.hello}, b""
        if do == "interpreter":
            return {"python": "3.11.2", "torch": self.machines.torch[self.name]}, b""
        if do == "hash_environments":
            return {"environments": self.machines.environments.get(self.name, {})}, b""
        if do == "listen":
            return {"port": 20001}, b""
        if do == "examine_gpus":
            return {"gpus": []}, b""
        if do == "look_at_queue":
            places = {"gpu-0": {"uid": 1001, "user": "bob", "run": "r-1", "since": 1}, "gpu-1": None}
            return {"places": places, "tickets": [], "uid": 1000, "now": 1}, b""
        if (self.name, values["addrs"][0]) in self.machines.cut:
            return {"addr": None, "problems": [f"{values['addrs'][0]}: timed out"]}, b""
        if self.machines.reaches.get(self.name, True):
            return {"addr": "10.0.0.1", "own": "10.0.0.2", "interface": "ib0"}, b""
        return {"addr": None, "problems": ["10.0.0.1: timed out"]}, b""


def found(machines: Machines, **profile: Any) -> dict[tuple[str, str], Check]:
    values = {"kind": "ssh", "name": "lab", "hosts": ["a", "b", "c"], "nodes": 3, "nproc_per_node": 4, **profile}
    where = PROFILE.validate_python(values)
    assert isinstance(where, SshProfile)
    checks = doctor.examine(where, machines)  # type: ignore[arg-type]
    with_gpus = bool({**HELLO, **machines.hello}["gpus"])  # of which nothing more is told
    assert len(checks) == 3 * (len(doctor.CHECKS) + bool(machines.environments) + with_gpus)
    return {(check.host, check.what): check for check in checks}


def test_nothing_stands_in_the_way() -> None:
    checks = found(Machines({"a": "2.9", "b": "2.9", "c": "2.9"}, {}, {}))
    assert {check.level for check in checks.values()} == {"ok"}
    assert checks["b", "master"].value == "10.0.0.1:20001 from 10.0.0.2, ib0"
    assert results.doctor_page(list(checks.values())).endswith("\nall checks passed")


def test_a_disk_on_which_a_submit_is_refused_fails() -> None:
    for free, level in ((6 << 20, "fail"), (upload.LEAST_FREE, "warn"), (1 << 40, "ok")):
        checks = found(Machines(dict.fromkeys("abc", "2.9"), {"free": free}, {}))
        assert checks["a", "workdir"].level == level


def test_a_machine_that_is_listed_twice_is_refused() -> None:
    checks = found(Machines(dict.fromkeys("abc", "2.9"), {"host": "n1"}, {}))
    assert [checks[host, "ssh"].level for host in "abc"] == ["ok", "fail", "fail"]
    assert checks["b", "ssh"].value == "it is the same machine as a (10.0.0.1)"


def test_a_way_between_neighbours_is_tried_as_a_start_tries_it() -> None:
    machines = Machines(dict.fromkeys("abc", "2.9"), {}, {})
    machines.cut = {("b", "10.0.0.3")}
    hosts = [{"host": name, "addr": f"10.0.0.{number}"} for number, name in enumerate("abc", 1)]
    checks = found(machines, hosts=hosts)
    assert [checks[host, "master"].level for host in "abc"] == ["ok", "fail", "ok"]
    assert checks["b", "master"].value == "it can't reach c, its neighbour: 10.0.0.3: timed out"
    assert checks["b", "master"].hint == "open the ports of ports: in the profile from b to c"


def test_each_failure_is_said_with_its_remedy() -> None:
    machines = Machines({"a": "2.9", "b": None}, {"shm": 64 << 20, "gpus": 2}, {"b": False})
    checks = found(machines)
    assert checks["c", "ssh"].level == "fail"
    assert {checks["c", what].level for what in doctor.CHECKS[1:]} == {"-"}
    assert [checks["a", what].level for what in ("shm", "ranks", "training")] == ["warn", "warn", "ok"]
    assert (checks["b", "training"].level, checks["b", "master"].level) == ("fail", "fail")
    page = results.doctor_page(list(checks.values()))
    assert "fail  node 1 (b), training: python 3.11.2, torch missing\n      install torch for python3" in page
    assert "fail  node 1 (b), master: 10.0.0.1: timed out\n      open port 20001 to it, or set addr: of a" in page
    assert "fail  node 2 (c), ssh: c: no answer\n      try: ssh c" in page
    assert page.endswith("3 of 30 checks failed")


def test_a_torch_that_differs_from_the_others_is_found() -> None:
    checks = found(Machines({"a": "2.9", "b": "2.8", "c": "2.9"}, {}, {}))
    assert [checks[host, "same versions"].level for host in "abc"] == ["ok", "fail", "ok"]
    assert checks["b", "same versions"].hint == "the others have torch 2.9: install that"


def test_an_environment_that_is_altered_or_differs_from_the_others_is_found() -> None:
    machines = Machines(dict.fromkeys("abc", "2.9"), {}, {})
    machines.environments = {
        "a": {"k" * 64: ["1", None]},
        "b": {"k" * 64: ["2", None]},
        "c": {"k" * 64: ["1", None], "l" * 64: ["3", "l is not as it was installed: x.py"]},
    }
    checks = found(machines)
    said = {host: checks[host, doctor.ENVIRONMENTS] for host in "abc"}
    assert (said["a"].level, said["a"].value) == ("ok", "1, as installed")
    assert (said["b"].level, "kkkkkkkkkkkk holds other files" in said["b"].value) == ("fail", True)
    assert (said["c"].level, said["c"].value) == ("fail", "l is not as it was installed: x.py")
    machines.environments = {"a": {"k" * 64: ["2", "k is not as it was installed: x.py"]}, "b": {"k" * 64: ["1", None]}}
    checks = found(machines)
    assert [checks[host, doctor.ENVIRONMENTS].level for host in "abc"] == ["fail", "ok", "-"]


def test_a_python_that_can_not_prove_itself_is_found_where_nodes_are_several() -> None:
    machines = Machines({"a": "2.9", "b": "2.9", "c": "2.9"}, {"lacks_tls": "its Python has no ssl module"}, {})
    checks = found(machines)
    assert checks["b", "python3"].level == "fail"
    assert checks["b", "python3"].value.startswith("3.11.2; its Python has no ssl module, by which nodes prove")
    alone = PROFILE.validate_python({"kind": "ssh", "name": "lab", "hosts": ["a"], "nproc_per_node": 4})
    levels = {check.what: check.level for check in doctor.examine(alone, machines)}  # type: ignore[arg-type]
    assert levels["python3"] == "ok"


def test_a_python3_that_does_not_work_is_no_failure_of_ssh() -> None:
    machines = Machines({"a": "2.9", "c": "2.9"}, {}, {})
    machines.broken = PythonMissingError("b: its python3 does not start orch's server: it ended with code 1", "try it")
    checks = found(machines)
    assert (checks["b", "ssh"].level, checks["b", "python3"].level) == ("ok", "fail")
    assert checks["b", "python3"].value.endswith("it ended with code 1")


def test_an_interface_that_a_machine_lacks_fails_its_way_to_node_0() -> None:
    checks = found(Machines({"a": "2.9", "b": "2.9", "c": "2.9"}, {"interface": "it has no network interface x"}, {}))
    assert {(checks[host, "master"].level, checks[host, "master"].value) for host in "abc"} == {
        ("fail", "it has no network interface x")
    }


def test_a_clock_that_differs_is_no_failure() -> None:
    checks = found(Machines({"a": "2.9", "b": "2.9", "c": "2.9"}, {"time": 0.0}, {}))
    assert {checks[host, "clock"].level for host in "abc"} == {"warn"}


def test_who_holds_what_is_shown_for_every_host() -> None:
    settings = SshSettings.of({"hosts": [{"host": "a"}], "spares": [{"host": "b"}]})
    rows = holdings(settings, Machines({"a": "2.9"}, {"gpus": 2}, {}))  # type: ignore[arg-type]
    page = results.nodes_page(rows).splitlines()
    assert page[1].split("  ")[0] == "a"
    assert page[1].endswith("gpu-0 bob: r-1, gpu-1 free")
    assert page[2].startswith("b (spare)")
    assert page[2].endswith("b: no answer")


def test_hosts_that_are_alike_share_a_line() -> None:
    free = {"spare": False, "cores": 8, "gpus": 1, "places": {"gpu-0": None}}
    found = [{**free, "host": f"n{number}", "free": (9 + number) << 30} for number in range(1, 63)]
    held = {**free, "host": "n63", "free": 9 << 30, "places": {"gpu-0": {"user": "bob", "run": "r-1"}}}
    page = results.nodes_page([*found, held]).splitlines()
    assert [" ".join(line.split()) for line in page[1:]] == [
        "n[1-62] 8 1 from 10.0 GiB gpu-0 free", "n63 8 1 9.0 GiB gpu-0 bob: r-1"
    ]  # fmt: skip

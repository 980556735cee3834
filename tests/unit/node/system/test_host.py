"""What a node finds out about itself, on machines that this one is not."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.node.system import host
from orchestrator.node.system.gpus import devices
from orchestrator.node.system.host import addresses, listening_addresses, network_environment, nproc_here
from orchestrator.protocol.places.devices import Device
from orchestrator.protocol.task import NodeTask, Program

NO_ETH9 = "it has no network interface eth9, which the profile names; its interfaces: lo, docker0, eth0, ib0"
ETH0 = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=eth0"}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """A machine with docker0 first, whose name resolves to `guess` and whose route to the master starts at `source`."""

    def make(guess: str | None, source: str | None) -> None:
        interfaces = {"lo": "127.0.0.1", "docker0": "172.17.0.1", "eth0": "10.0.0.2", "ib0": None}

        def resolve(_: str) -> str:
            if guess is None:
                raise socket.gaierror(-2, "Name or service not known")
            return guess

        monkeypatch.setattr(socket, "gethostbyname", resolve)
        monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(interfaces)))
        monkeypatch.setattr(host, "interface_address", interfaces.get)
        monkeypatch.setattr(host, "_source_address", lambda _: source)

    return make


@pytest.mark.parametrize(
    ("guess", "master", "source", "expected"),
    [
        ("10.0.0.2", "10.0.0.1", "10.0.0.2", {}),  # the guess is right
        ("127.0.1.1", "10.0.0.1", "10.0.0.2", ETH0),  # Debian's own /etc/hosts
        ("172.17.0.1", "10.0.0.1", "10.0.0.2", ETH0),  # docker's bridge
        (None, "10.0.0.1", "10.0.0.2", ETH0),  # no name at all
        ("127.0.1.1", "127.0.0.1", "127.0.0.1", {}),  # all on this machine: any own address will do
        (None, "127.0.0.1", "127.0.0.1", {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}),
        ("127.0.1.1", "10.0.0.1", None, {}),  # no route: the gang's own check says so
        ("127.0.1.1", "10.0.0.1", "10.9.9.9", {}),  # an address of no interface
    ],
)
def test_the_interface_is_set_only_where_the_guess_is_wrong(machine, guess, master, source, expected) -> None:
    machine(guess, source)
    assert network_environment(master, None) == expected


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (None, ""),
        ("eth0", ""),
        ("lo,eth0", ""),
        ("eth9", NO_ETH9),
        ("eth0,eth9", NO_ETH9),
        ("ib0", "its network interface ib0, which the profile names, has no address"),
    ],
)
def test_an_interface_that_is_not_there_is_named_with_those_that_are(
    machine, tmp_path: Path, names: str | None, problem: str
) -> None:
    machine(guess=None, source=None)
    (tmp_path / "if_inet6").write_text("00000000000000000000000000000001 01 80 10 80       lo\n")
    assert host.interface_problem(names, str(tmp_path / "if_inet6")) == problem
    (tmp_path / "if_inet6").write_text("fe800000000000000000000000000001 04 40 20 80      ib0\n")
    assert host.interface_problem("ib0", str(tmp_path / "if_inet6")) == ""


def test_a_named_interface_is_taken_as_it_is(machine) -> None:
    machine("10.0.0.2", "10.0.0.2")
    assert network_environment("10.0.0.1", "ib0") == {"GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "=ib0"}


@pytest.mark.parametrize(
    ("gpus", "infiniband", "master", "expected"),
    [
        ("0,1", False, "10.0.0.1", {"NCCL_SOCKET_IFNAME": "=eth0"}),
        ("0,1", True, "10.0.0.1", {"NCCL_SOCKET_IFNAME": host.NOT_BETWEEN_NODES}),
        ("", False, "10.0.0.1", {}),
        ("0,1", False, "127.0.0.1", {}),  # one machine, or its own address on the way back
    ],
)
def test_the_sockets_of_nccl_keep_to_the_way_to_the_master_also_where_gloo_needs_no_help(
    machine, monkeypatch: pytest.MonkeyPatch, gpus: str, infiniband: bool, master: str, expected: dict[str, str]
) -> None:
    machine("10.0.0.2", "10.0.0.2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    monkeypatch.setattr(host, "_has_infiniband", lambda: infiniband)
    assert network_environment(master, None) == expected


def test_addresses_have_loopback_last(machine) -> None:
    machine(None, None)
    assert addresses() == ("172.17.0.1", "10.0.0.2", "127.0.0.1")


def test_this_machine_has_addresses_and_a_way_to_itself() -> None:
    assert "127.0.0.1" in addresses()
    assert host._source_address("127.0.0.1") == "127.0.0.1"
    assert host.interface_address("no-such-interface") is None


@pytest.mark.parametrize(
    ("shell", "own", "there", "nproc"),
    [
        (None, None, 0, 6),
        (None, None, 2, 2),
        ("0,1,3", None, 4, 3),
        ("GPU-5a, MIG-77", None, 0, 2),
        ("", None, 2, 6),
        ("-1", None, 2, 6),
        ("NoDevFiles", None, 2, 6),
        ("0,1,2", "GPU-5a", 4, 1),  # what the job, or its lease, says comes before the shell's word
    ],
)
def test_nproc_is_the_gpus_else_the_cores(monkeypatch: pytest.MonkeyPatch, shell, own, there, nproc) -> None:
    cards = tuple(Device(f"gpu-{number}", number, f"gpu-{number}") for number in range(there))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(devices, "machine_devices", lambda: cards)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shell is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shell)
    task = NodeTask("r-1", 0, 1, ("a",), None, "/r", "/c", Program("script", "x"), "auto", "auto", "python", (), (1, 2),
                    env={} if own is None else {"CUDA_VISIBLE_DEVICES": own})  # fmt: skip
    assert nproc_here(task) == nproc
    assert nproc_here(replace(task, nproc=5)) == 5
    assert nproc_here(replace(task, uses_gpus=False)) == 6


@pytest.mark.parametrize(
    ("names", "interface", "expected"),
    [
        (("10.0.0.2",), None, ("10.0.0.2",)),  # its addr, or what Slurm says
        (("n1", "172.17.0.1", "10.0.0.2"), None, ("10.0.0.2", "172.17.0.1")),  # as submit has found them
        (("n1", "172.17.0.1", "10.0.0.2"), "eth0", ("10.0.0.2",)),
        (("172.17.0.1",), "eth0", ("172.17.0.1",)),  # not what the others dial
        (("debian",), None, ("172.17.0.1", "10.0.0.2", "127.0.1.1")),  # its own name is a loopback address to itself
        (("debian",), "eth0", ("10.0.0.2", "127.0.1.1")),
        (("outside",), None, ("172.17.0.1", "10.0.0.2")),  # an address that is translated on the way
        (("nowhere",), "eth9", ("172.17.0.1", "10.0.0.2")),
        (("127.0.0.1",), "eth0", ("127.0.0.1",)),  # all nodes are on this machine
    ],
)
def test_node_0_listens_where_the_others_dial_it(
    machine, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], interface: str | None, expected: tuple[str, ...]
) -> None:
    known = {"n1": "10.0.0.2", "debian": "127.0.1.1", "outside": "203.0.113.9"}

    def resolve(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        if name == "nowhere":
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (known.get(name, name), 0))]

    machine(None, None)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    own = ("127.0.0.1", "127.0.1.1", "172.17.0.1", "10.0.0.2")
    monkeypatch.setattr(host, "_can_bind", lambda address: address in own)
    assert listening_addresses(names, interface) == expected

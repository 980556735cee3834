"""A rank's own process uses the launcher's store at the launcher's port alone, and a single rank can join by env://."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import pytest

from orchestrator.node.launcher.rank.rendezvous import ADDR, FLAG, PORT, change_rendezvous
from orchestrator.protocol.ranks import LAUNCHER_SERVES

RENDEZVOUS = "torch.distributed.rendezvous"
SERVED = {FLAG: LAUNCHER_SERVES, ADDR: "10.0.0.1", PORT: "4242"}


@pytest.fixture
def rendezvous(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stands for torch's module; its functions return what they are asked for, and the variables."""

    def _create_c10d_store(hostname: str, port: int, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"at": (hostname, port), "rest": args, **kwargs, **{name: os.environ.get(name) for name in SERVED}}

    module = ModuleType(RENDEZVOUS)
    vars(module)["_create_c10d_store"] = _create_c10d_store
    vars(module)["_rendezvous_handlers"] = {"env": lambda url: {name: os.environ.get(name) for name in SERVED}}
    monkeypatch.setitem(sys.modules, RENDEZVOUS, module)
    for name, value in SERVED.items():
        monkeypatch.setenv(name, value)
    return module


@pytest.mark.parametrize(("host", "port"), [("localhost", 12355), ("10.0.0.1", 23456)])
def test_at_another_port_rank_0_serves_the_store(
    rendezvous: Any, monkeypatch: pytest.MonkeyPatch, host: str, port: int
) -> None:
    change_rendezvous({})
    monkeypatch.setenv(ADDR, host)
    monkeypatch.setenv(PORT, str(port))
    made = rendezvous._create_c10d_store(host, port, 0, 2, timeout=3)
    assert (made["at"], made["rest"], made["timeout"]) == ((host, port), (0, 2), 3)
    assert (made[FLAG], made[ADDR], made[PORT]) == (None, host, str(port))
    assert os.environ[FLAG] == LAUNCHER_SERVES


def test_at_the_launchers_port_all_connect_wherever_the_program_says_that_it_is(
    rendezvous: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_rendezvous({})
    monkeypatch.setenv(ADDR, "localhost")  # where the launcher's store does not listen
    made = rendezvous._create_c10d_store("localhost", 4242, 0, 2)
    assert (made["at"], made[FLAG], made[ADDR]) == (("10.0.0.1", 4242), "True", "10.0.0.1")
    assert os.environ[ADDR] == "localhost"


def test_without_a_store_of_the_launchers_nothing_is_changed(rendezvous: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rendezvous._create_c10d_store
    monkeypatch.setenv(FLAG, "False")
    change_rendezvous({})
    assert rendezvous._create_c10d_store is before


def test_a_single_rank_without_variables_gets_them_when_it_joins(
    rendezvous: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SERVED:
        monkeypatch.delenv(name)
    monkeypatch.setenv(PORT, "12355")  # by the program itself
    change_rendezvous({ADDR: "127.0.0.1", PORT: "4242"})
    assert ADDR not in os.environ
    assert rendezvous._rendezvous_handlers["env"]("env://") == {FLAG: None, ADDR: "127.0.0.1", PORT: "12355"}

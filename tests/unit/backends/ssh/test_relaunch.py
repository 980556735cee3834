"""Which machines a start gets, and which is node 0: what is decided is recorded once, however often it is tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.backends.base import HandleState
from orchestrator.backends.settings import SshSettings
from orchestrator.backends.ssh.handle import SECRETS, Handle
from orchestrator.backends.ssh.relaunch import credentials_of, in_order, machines
from orchestrator.errors import BackendError
from orchestrator.runs.relaunch import Relaunch
from orchestrator.runs.store import RunDir
from orchestrator.transport.address import Address

PROFILE: dict[str, Any] = {
    "hosts": [{"host": "n1"}, {"host": "n2"}, {"host": "n3"}], "spares": [{"host": "n4"}, {"host": "n5"}],
    "node_wait": 900,
}  # fmt: skip


def test_node_0_of_another_start_is_where_the_newest_checkpoint_is() -> None:
    assert in_order([0, 1, 2], {}, -1) == [0, 1, 2]
    assert in_order([0, 1, 2], {0: 10, 1: 10, 2: 5}, 10) == [0, 1, 2]
    assert in_order([0, 1, 2], {0: -1, 1: 10, 2: 5}, 10) == [1, 0, 2]
    assert in_order([0, 2], {0: 5, 2: 10}, -1) == [2, 0]
    assert in_order([0, 1, 2], {0: -1, 1: 10, 2: 5}, 15) == [0, 1, 2]  # node 0 is given it


class Machines:
    """A connection pool whose hosts answer, or are off."""

    def __init__(self, *off: str) -> None:
        self.off = set(off)

    def session(self, address: Address, workdir: str) -> Machines:
        if address.host in self.off:
            raise BackendError(f"{address.host}: timed out", transient=True)
        return self

    def call(self, do: str, **values: Any) -> tuple[dict[str, Any], bytes]:
        return {}, b""


def test_a_replacement_is_recorded_once_while_another_node_is_waited_for(tmp_path: Path) -> None:
    run, again, pool = RunDir(tmp_path), Relaunch(1, 1, "infra", "lost"), Machines("n1", "n2", "n3", "n5")
    settings = SshSettings.of(PROFILE)
    Handle(HandleState.SUBMITTED, 0, settings.hosts, {}, (0, 1, 2)).write(run)

    def replaced() -> list[tuple[str, str]]:
        return [(event["host"], event["by"]) for event in run.events() if event["kind"] == "replaced"]

    for _ in range(5):
        assert machines(run, pool, settings, again) is None  # type: ignore[arg-type]
    assert replaced() == [("n1", "n4")]
    assert [event["hosts"] for event in run.events() if event["kind"] == "waiting_for_hosts"] == [["n2", "n3"]]
    pool.off = {"n1", "n3", "n4"}
    assert machines(run, pool, settings, again) is None  # type: ignore[arg-type]
    pool.off = {"n1"}
    found = machines(run, pool, settings, again)  # type: ignore[arg-type]
    assert found is not None
    assert [host.name for host in found.values()] == ["n4", "n2", "n3"]
    assert replaced() == [("n1", "n4"), ("n1", "n5"), ("n1", "n4")]  # each time that it is another machine


def test_each_start_has_credentials_of_its_own_and_one_that_was_cut_off_goes_on_with_them(tmp_path: Path) -> None:
    run, first = RunDir(tmp_path), Relaunch(1, 1, "infra", "lost")

    def kept() -> dict[str, Any]:
        return dict(run.read(SECRETS) or {})

    run.write(SECRETS, {"secrets": {"KEY": "value"}}, private=True)
    made = credentials_of(run, kept(), first, 2)
    assert made.startswith("-----BEGIN CERTIFICATE-----")
    assert credentials_of(run, kept(), first, 2) == made
    assert credentials_of(run, kept(), first, 1) == ""  # it goes on with one node, which talks to nobody
    assert credentials_of(run, kept(), Relaunch(2, 2, "infra", "lost"), 2) not in ("", made)
    assert kept()["secrets"] == {"KEY": "value"}
    assert (tmp_path / SECRETS).stat().st_mode & 0o777 == 0o600

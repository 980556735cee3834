"""Which machines a start gets, and which is node 0: what is decided is recorded once, however often it is tried."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.agents import relaunch
from orchestrator.backends.agents.handle import SECRETS, Handle
from orchestrator.backends.agents.liveness import last_seen
from orchestrator.backends.agents.over_ssh import AgentsOverSsh
from orchestrator.backends.agents.reachability import blamed
from orchestrator.backends.agents.relaunch import credentials_of, hosts_for_start, in_order
from orchestrator.backends.agents.watcher import NodeFollower
from orchestrator.backends.hosts import all_of
from orchestrator.backends.settings import AgentsSettings, Host
from orchestrator.errors import BackendError, JobOverError
from orchestrator.outcome.restart import Relaunch
from orchestrator.protocol.events import Event, GoingOnWithout, Replaced, WaitingForHosts, of
from orchestrator.protocol.progress import Progress
from orchestrator.runs.restarts.recovery import Reserves
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir
from orchestrator.transport.address import Address
from orchestrator.transport.machine import Machine
from tests.events import event
from tests.machines import FakeMachine, FakePool, Told
from tests.unit.profiles import profile_of, recorded

PROFILE: dict[str, Any] = {
    "hosts": [{"host": f"n{number}", "addr": f"n{number}"} for number in (1, 2, 3)],
    "spares": [{"host": f"n{number}", "addr": f"n{number}"} for number in (4, 5)],
    "node_wait": 900,
}  # fmt: skip


def test_node_0_of_another_start_is_where_the_newest_checkpoint_is() -> None:
    none, five, ten = Progress(), Progress(5), Progress(10)
    assert in_order([0, 1, 2], {}, none) == [0, 1, 2]
    assert in_order([2, 1, 0], {0: none, 1: none}, none) == [0, 1, 2]
    assert in_order([0, 1, 2], {0: ten, 1: ten, 2: five}, ten) == [0, 1, 2]
    assert in_order([0, 1, 2], {0: none, 1: ten, 2: five}, ten) == [1, 0, 2]
    assert in_order([0, 2], {0: five, 2: ten}, none) == [2, 0]
    assert in_order([0, 1, 2], {0: none, 1: ten, 2: five}, Progress(15)) == [0, 1, 2]  # node 0 is given it
    assert in_order([0, 1], {0: Progress(saved=1.0), 1: Progress(saved=2.0)}, none) == [1, 0]


class Machines(FakePool):
    """Hosts that answer, or are off; on ways that are `broken` nothing gets through."""

    def __init__(self, *off: str, broken: Collection[tuple[str, str]] = ()) -> None:
        self.off, self.broken = set(off), broken
        answers: dict[str, Told] = {"hello": {"addresses": []}, "listen": {"port": 1}}
        names = [f"n{number}" for number in range(1, 6)]
        super().__init__(*(FakeMachine(name, {**answers, "probe": partial(self._probe, name)}) for name in names))

    def session(self, address: Address, workdir: str) -> Machine:
        if address.host in self.off:
            raise BackendError(f"{address.host}: timed out", transient=True)
        return super().session(address, workdir)

    def _probe(self, name: str, addrs: tuple[str, ...], **_: Any) -> dict[str, Any]:
        (other,) = addrs
        is_broken = (name, other) in self.broken or (other, name) in self.broken  # TCP needs both directions
        return {"addr": None, "problems": [f"{other}: timed out"]} if is_broken else {"addr": other}


def chosen(
    run: RunDir, pool: Machines, settings: AgentsSettings, again: Relaunch, **refused: BackendError
) -> dict[int, Host] | None:
    """The machines of the next start; a host that answers is fit for it, but for those that have refused it."""

    def check(_: int, host: Host) -> None:
        pool.session(host.address, settings.workdir).call("hello")

    errors = {host: refused[host.name] for host in settings.all_hosts.values() if host.name in refused}
    return hosts_for_start(run, pool, settings, again, check, errors)


def test_a_replacement_is_recorded_once_while_another_node_is_waited_for(tmp_path: Path) -> None:
    run, again, pool = RunDir(tmp_path), Relaunch(1, 1, "infra", "lost"), Machines("n1", "n2", "n3", "n5")
    settings = AgentsSettings.of(profile_of(**PROFILE))
    Handle(HandleStatus.SUBMITTED, 0, settings.hosts, {}, (0, 1, 2)).write(run)

    def replaced() -> list[tuple[str, str]]:
        return [(event.host, event.by) for event in of(run.events(), Replaced)]

    for _ in range(5):
        assert chosen(run, pool, settings, again) is None
    assert replaced() == [("n1", "n4")]
    assert [event.hosts for event in of(run.events(), WaitingForHosts)] == [("n2", "n3")]
    pool.off = {"n1", "n3", "n4"}
    assert chosen(run, pool, settings, again) is None
    pool.off = {"n1"}
    found = chosen(run, pool, settings, again)
    assert found is not None
    assert [host.name for host in found.values()] == ["n4", "n2", "n3"]
    assert replaced() == [("n1", "n4"), ("n1", "n5"), ("n1", "n4")]  # each time that it is another machine


def machines_of(
    folder: Path, broken: set[tuple[str, str]], **profile: Any
) -> tuple[list[str] | None, tuple[Event, ...]]:
    """The machines of the next start, by name, where these ways are broken; and what has been recorded."""
    folder.mkdir(exist_ok=True)
    run, settings = RunDir(folder), AgentsSettings.of(profile_of(**PROFILE | profile))
    Handle(HandleStatus.SUBMITTED, 0, settings.hosts, {}, (0, 1, 2)[: len(settings.hosts)]).write(run)
    pool = Machines(broken=broken)
    found = chosen(run, pool, settings, Relaunch(1, 1, "infra", "lost"))
    return (None if found is None else [host.name for host in found.values()]), run.events()


def test_a_machine_that_the_others_can_not_reach_is_replaced_like_one_that_is_off(tmp_path: Path) -> None:
    found, _ = machines_of(tmp_path / "whole", set())
    assert found == ["n1", "n2", "n3"]
    found, events = machines_of(tmp_path / "n2", {("n1", "n2"), ("n3", "n2"), ("n4", "n2"), ("n5", "n2")})
    assert found == ["n1", "n4", "n3"]
    assert [(event.host, event.by) for event in of(events, Replaced)] == [("n2", "n4")]


def test_a_machine_whose_gpu_failed_is_replaced_if_a_spare_answers_and_else_takes_part_again(tmp_path: Path) -> None:
    def found(name: str, message: str, *off: str, attempt: int = 0, **profile: Any) -> list[str]:
        folder = tmp_path / name
        folder.mkdir()
        run, settings = RunDir(folder), AgentsSettings.of(profile_of(**PROFILE | profile))
        Handle(HandleStatus.SUBMITTED, 0, settings.hosts, {}, (0, 1, 2)).write(run)
        error = {"type": "torch.AcceleratorError", "message": message}
        culprit = {"rank": 2, "node": 1, "code": 1, "error": error, "tail": []}
        run.append_event(event("attempt_failed", attempt=attempt, cause="infra", culprit=culprit))
        taken = chosen(run, Machines(*off), settings, Relaunch(1, 1, "infra", "lost"))
        assert taken is not None
        return [host.name for host in taken.values()]

    broken = "CUDA error: uncorrectable ECC error encountered"
    assert found("spare", broken) == ["n1", "n4", "n3"]
    assert found("another", "CUDA error: device-side assert triggered") == ["n1", "n2", "n3"]
    assert found("no spare", broken, spares=[]) == ["n1", "n2", "n3"]
    assert found("spares are off", broken, "n4", "n5") == ["n1", "n2", "n3"]
    assert found("long ago", broken, attempt=7) == ["n1", "n2", "n3"]


def test_of_two_machines_between_which_nothing_passes_the_spares_tell_which_is_cut_off(tmp_path: Path) -> None:
    two = {"hosts": PROFILE["hosts"][:2]}
    found, _ = machines_of(tmp_path / "either", {("n1", "n2")}, **two)
    assert found == ["n1", "n4"]
    found, _ = machines_of(tmp_path / "n1", {("n1", "n2"), ("n1", "n4"), ("n1", "n5")}, **two)
    assert found == ["n4", "n2"]
    found, _ = machines_of(tmp_path / "n4", {("n1", "n2"), ("n4", "n1"), ("n4", "n2")}, **two)
    assert found == ["n1", "n5"]


def test_without_a_spare_who_can_not_be_reached_is_waited_for_with_the_reason(tmp_path: Path) -> None:
    alone = {"hosts": PROFILE["hosts"][:2], "spares": []}
    found, (waits,) = machines_of(tmp_path, {("n1", "n2")}, **alone)
    assert found is None
    assert isinstance(waits, WaitingForHosts)
    assert (waits.hosts, waits.why) == (("n2",), ("n2: it can't reach n1: n1: timed out",))
    found, (_, left_out) = machines_of(tmp_path, {("n1", "n2")}, **alone, min_nodes=1)
    assert isinstance(left_out, GoingOnWithout)
    assert (found, left_out.hosts) == (["n1"], ("n2",))


FULL = BackendError("n2: /w has only 5 MiB left", "make room on that disk")


def test_a_machine_that_refuses_another_start_is_replaced_waited_for_or_done_without(tmp_path: Path) -> None:
    def found(name: str, refused: BackendError = FULL, **profile: Any) -> tuple[list[str] | None, Any]:
        run, settings = RunDir(tmp_path / name), AgentsSettings.of(profile_of(**PROFILE | profile))
        run.path.mkdir()
        Handle(HandleStatus.SUBMITTED, 0, settings.hosts, {}, (0, 1, 2)).write(run)
        for _ in range(2):  # how much room is left may change
            taken = chosen(run, Machines(), settings, Relaunch(1, 1, "infra", "lost"), n2=refused)
            refused = BackendError("n2: /w has only 4 MiB left")
        (event,) = run.events()
        return None if taken is None else [host.name for host in taken.values()], event

    hosts, event = found("spare")
    assert (hosts, event.by, event.why) == (["n1", "n4", "n3"], "n4", FULL.message)
    hosts, event = found("wait", spares=[])
    assert (hosts, event.kind, event.why) == (None, "waiting_for_hosts", (FULL.message,))
    hosts, event = found("fewer", spares=[], min_nodes=2)
    assert (hosts, event.hosts, event.why) == (["n1", "n3"], ("n2",), (FULL.message,))


def test_a_machine_that_is_back_takes_the_place_of_the_spare_that_replaced_it(tmp_path: Path) -> None:
    run, settings = RunDir(tmp_path), AgentsSettings.of(profile_of(**PROFILE))
    n1, n2, n3, n4, n5 = settings.all_hosts.values()
    handle = Handle(HandleStatus.SUBMITTED, 1, (n1, n4, n3), {}, (0, 1, 2))
    assert handle.free_hosts(settings) == [n5, n2]
    assert replace(handle, hosts=(n1, n5, n3), former=(n2, n4)).free_hosts(settings) == [n4, n2]
    Handle(HandleStatus.SUBMITTED, 1, (n1, n4, n3), {}, (0, 1, 2), (n2,)).write(run)
    for off in ({"n4"}, {"n4", "n5"}):
        found = chosen(run, Machines(*off), settings, Relaunch(2, 2, "infra", "lost"))
        assert found is not None
        assert [host.name for host in found.values()] == ["n1", "n5" if len(off) == 1 else "n2", "n3"]
    assert [event.why for event in of(run.events(), Replaced)] == ["n4: timed out", "n4: timed out"]


def test_the_forecast_of_a_start_has_the_machines_that_the_start_chooses_from(tmp_path: Path) -> None:
    run, settings = RunDir(tmp_path), AgentsSettings.of(profile_of(**PROFILE))
    n1, n2, n3, n4, _ = settings.all_hosts.values()
    run.write("run.json", recorded(**PROFILE))
    has = Reserves(("n1", "n2", "n3"), ("n4", "n5"), frozenset(), None, 900)
    assert AgentsOverSsh().reserves(run) == has
    Handle(HandleStatus.SUBMITTED, 1, (n1, n4), {}, (0, 1), (n2, n3)).write(run)  # n3 was left out
    now = replace(has, hosts=("n1", "n4", "n3"), free=("n5", "n2"), former=frozenset({"n2", "n3"}))
    assert AgentsOverSsh().reserves(run) == now


def test_every_machine_that_refuses_a_start_is_known_by_its_own_error() -> None:
    full = BackendError("n3: full", "make room on that disk", transient=True)
    error = all_of({1: FULL, 2: full})
    assert (error.by_number, error.transient, error.message) == (
        {1: FULL, 2: full},
        False,
        f"{FULL.message}\n{full.message}",
    )


def test_as_few_machines_are_blamed_as_explain_all_broken_ways() -> None:
    assert blamed([]) == {}
    assert blamed([(0, 1), (1, 0)]) == {1: (1, 0)}
    assert blamed([(1, 0), (2, 0), (3, 0)]) == {0: (1, 0)}
    assert blamed([(1, 0), (2, 1), (0, 1), (3, 2)]) == {1: (1, 0), 3: (3, 2)}


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


def test_logs_are_brought_of_machines_that_get_another_number_and_have_begun(tmp_path: Path, monkeypatch) -> None:
    run, settings, asked = RunDir(tmp_path), AgentsSettings.of(profile_of(**PROFILE)), []
    Handle(HandleStatus.SUBMITTED, 0, settings.hosts, {}, (0, 1, 2)).write(run)
    for node in (0, 1):  # node 2 has written nothing
        run.node(node).mkdir(parents=True)
        (run.node(node) / "events.jsonl").touch()
    monkeypatch.setattr(relaunch, "remote_folder", lambda _: "/w/r-1")
    monkeypatch.setattr(relaunch, "update_all", lambda copies, *_, only_logs: asked.append((*copies, only_logs)))
    relaunch._bring_logs_of_renumbered(run, Machines(), settings, [2, 1, 0])  # type: ignore[arg-type]
    assert [(copy.node, only_logs) for copy, only_logs in asked] == [(0, True)]  # node 1 keeps its number


def test_nothing_is_started_on_machines_whose_job_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, of_job = RunDir(tmp_path), {**PROFILE, "start_by": ["ssh", "srun"], "job": "slurm:7"}
    run.write("run.json", recorded(**of_job))
    run.write("plan.json", {"tasks": []})
    monkeypatch.setattr(relaunch, "is_over", lambda job: job == "slurm:7")
    again = Relaunch(1, 1, "preempted", "stopped by SIGTERM, which orch has not sent")
    words = r"^stopped by SIGTERM, which orch has not sent; Slurm job 7, which had the machines of the run, has ended$"
    with pytest.raises(BackendError, match=words) as raised:
        relaunch.relaunch(run, Machines(), again)  # type: ignore[arg-type]
    assert not raised.value.transient  # so the run ends


def test_an_agent_is_gone_if_its_job_has_ended(tmp_path: Path) -> None:
    class Over(FakePool):
        def session(self, address: Address, workdir: str) -> Machine:
            raise JobOverError(f"{address.host}: Slurm job 7 has ended")

    run, settings = RunDir(tmp_path), AgentsSettings.of(profile_of(**PROFILE, start_by=["srun"], job="slurm:7"))
    run.write("run.json", recorded(**PROFILE))
    Handle(HandleStatus.SUBMITTED, 0, settings.hosts, {0: (1, 1)}, (0, 1, 2)).write(run)
    follower = NodeFollower(run, 0, Over())  # type: ignore[arg-type]
    with pytest.raises(JobOverError) as raised:
        follower.update()
    follower.record_loss(raised.value)
    seen = last_seen(run, 0)
    assert seen is not None
    assert (seen.alive, seen.host) == (False, settings.hosts[0])

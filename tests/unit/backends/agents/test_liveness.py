"""What the supervisor saw of an SSH run's agents: of one start, on one machine, and held against no other."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.backends.agents.handle import Handle
from orchestrator.backends.agents.liveness import Seen, last_seen, seen_now
from orchestrator.backends.agents.over_ssh import AgentsOverSsh
from orchestrator.backends.agents.watcher import AgentsWatcher, NodeFollower
from orchestrator.backends.mirror import watching as mirror
from orchestrator.backends.settings import Host
from orchestrator.outcome.unreachable import UNREACHABLE_SECONDS
from orchestrator.runs.files.logs import Selection
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir, create_run
from orchestrator.supervisor import observe
from orchestrator.supervisor.reconcile import reconcile
from orchestrator.transport.address import Address
from orchestrator.transport.machine import Machine
from orchestrator.transport.pool import ConnectionPool
from tests.machines import FakeMachine, FakePool, Health
from tests.patience import PATIENCE

N1, N2, N3 = (Host(Address(name)) for name in ("n1", "n2", "n3"))
OTHER_PORT = Host(Address("n2", port=2222))
LONG = UNREACHABLE_SECONDS + 1


def handle(start: int, *hosts: Host, state: HandleStatus = HandleStatus.SUBMITTED) -> Handle:
    return Handle(state, start, hosts, {}, tuple(range(len(hosts))))


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    found = RunDir(tmp_path / "r-1")
    found.path.mkdir()
    found.write("run.json", {"nnodes": 0, "profile": {"kind": "ssh", "hosts": ["n1", "n2"]}})
    return found


def ended_well(run: RunDir) -> None:
    """Node 0 says that the gang has ended."""
    run.node(0).mkdir(parents=True, exist_ok=True)
    end = {"kind": "gang_ended", "node": 0, "attempt": 0, "outcome": "succeeded", "cause": "", "reason": ""}
    (run.node(0) / "events.jsonl").write_text(json.dumps(end) + "\n")


@pytest.mark.parametrize(
    ("before", "since"),
    [
        (None, 20.0),
        (Seen(1, N2, None, 10.0, "no route"), 10.0),  # it has been out of reach all the time
        (Seen(1, N2, True), 20.0),
        (Seen(0, N2, None, 10.0, "no route"), 20.0),  # of the start before
        (Seen(1, N3, None, 10.0, "no route"), 20.0),  # of the machine before
        (Seen(1, OTHER_PORT, None, 10.0, "no route"), 20.0),
    ],
)
def test_out_of_reach_since_when_belongs_to_one_machine_and_one_start(before: Seen | None, since: float) -> None:
    assert Seen(1, N2, None, 20.0, "no route").after(before).unreachable_since == since
    assert Seen(1, N2, True).after(before) == Seen(1, N2, True)


def test_what_was_seen_is_found_again_and_what_is_damaged_was_not_seen(run: RunDir) -> None:
    assert last_seen(run, 1) is None
    seen = Seen(2, OTHER_PORT, None, 10.5, "no route")
    seen.write(run, 1)
    assert last_seen(run, 1) == seen
    for damage in ("", "[]", "{}", '{"start": 0, "alive": true, "away": null, "why": ""}', '{"machine": 1}'):
        (run.node(1) / "seen.json").write_text(damage)
        assert last_seen(run, 1) is None


@pytest.mark.parametrize(
    ("seen", "alive", "lost"),
    [
        (Seen(1, N3, True), True, set()),
        (Seen(1, N3, False), False, set()),
        (Seen(1, N3, None, 0.0, "no route"), None, {1}),  # it may be back in a moment
        (Seen(1, N3, None, LONG, "no route"), False, {1}),
        (Seen(0, N2, None, LONG, "no route"), None, set()),  # of the machine that n3 has replaced
        (Seen(1, N2, None, LONG, "no route"), None, set()),
        (Seen(0, N3, None, LONG, "no route"), None, set()),
        (Seen(0, N3, False), None, set()),
        (None, None, set()),
    ],
)
def test_only_what_was_seen_of_this_machine_in_this_start_counts(
    run: RunDir, seen: Seen | None, alive: bool | None, lost: set[int]
) -> None:
    now, backend = handle(1, N1, N3), AgentsOverSsh()
    watcher = backend.watcher(run)  # before it has hosts, so that it connects to none
    now.write(run)
    ended_well(run)
    Seen(1, N1, False).write(run, 0)
    if seen is not None:  # `unreachable_since` of the table is for how long
        since = None if seen.unreachable_since is None else time.time() - seen.unreachable_since
        replace(seen, unreachable_since=since).write(run, 1)
    assert backend.look(run).alive == {0: False, 1: alive}
    assert backend.unreachable(run) == lost
    assert (1 in seen_now(run, now)) == (seen is not None and seen.is_of(now, 1))
    watcher.stop()


def test_a_node_out_of_reach_is_waited_for_while_the_gang_goes_on(run: RunDir) -> None:
    handle(0, N1, N2).write(run)
    Seen(0, N1, True).write(run, 0)
    Seen(0, N2, None, time.time() - LONG, "no route").write(run, 1)
    assert AgentsOverSsh().look(run).alive == {0: True, 1: None}


@pytest.mark.parametrize(("attempt", "code", "gone"), [(0, 0, True), (0, 1, False), (1, 0, False)])
def test_the_only_machine_is_not_waited_for_once_all_exits_of_a_success_are_here(
    run: RunDir, attempt: int, code: int, gone: bool
) -> None:
    handle(0, N1).write(run)
    Seen(0, N1, None, time.time() - LONG, "no route").write(run, 0)
    said = [
        {"kind": "go", "world_size": 1},
        {"kind": "started", "ranks": [0, 1]},
        {"kind": "rank_exit", "rank": 0, "code": code},
    ]
    lines = [json.dumps({"node": 0, "attempt": 0, **each}) + "\n" for each in said]
    (run.node(0) / "events.jsonl").write_text("".join(lines))
    run.write("rank0.done", {"attempt": attempt})
    assert AgentsOverSsh().look(run).alive == {0: False if gone else None}


@pytest.mark.parametrize(("ago", "now", "gone"), [(20.0, False, False), (40.0, False, True), (1.0, True, True)])
def test_the_only_machine_is_not_waited_for_after_a_cancel(run: RunDir, ago: float, now: bool, gone: bool) -> None:
    run.write("run.json", {**(run.read("run.json") or {}), "grace": 30.0})
    handle(0, N1).write(run)
    Seen(0, N1, None, time.time() - LONG, "no route").write(run, 0)
    (run.path / "events.jsonl").write_text(json.dumps({"kind": "cancel", "time": time.time() - ago, "now": now}) + "\n")
    assert AgentsOverSsh().look(run).alive == {0: False if gone else None}


def test_who_waits_for_a_machine_looks_at_once_at_that_which_replaces_it(run: RunDir) -> None:
    watcher, pool = AgentsWatcher(run, ConnectionPool()), ConnectionPool()
    handle(0, N1, N2).write(run)
    follower = NodeFollower(run, 1, pool)
    handle(1, N1, N3, state=HandleStatus.INTENT).write(run)
    assert watcher.rest(follower, PATIENCE)
    watcher.stop()


def test_an_agent_is_gone_only_when_all_that_it_has_left_is_here(run: RunDir) -> None:
    """Else its last words seem never to have been said, and a run that succeeded is run again."""
    watcher, seen = AgentsWatcher(run, ConnectionPool()), []

    def poll(**_: object) -> dict[str, object]:
        """Answer that the agent is gone: first with more to come, then with all of it."""
        seen.append(last_seen(run, 0))
        if len(seen) == 2:
            watcher.ended.set()
        return {"files": [], "alive": False, "steps": [], "more": len(seen) == 1}

    handle(0, N1).write(run)
    watcher.follow(NodeFollower(run, 0, FakePool(FakeMachine("n1", {"poll_changes": poll}))))
    assert seen == [None, Seen(0, N1, None)]
    assert last_seen(run, 0) == Seen(0, N1, False)
    watcher.stop()


@pytest.mark.parametrize("health", [Health.HUNG, Health.SLOW, Health.DEAD])
def test_a_machine_that_does_not_answer_in_time_is_out_of_reach_until_it_answers(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, health: Health
) -> None:
    watcher, seen = AgentsWatcher(run, ConnectionPool()), []
    machine = FakeMachine("n1", {"poll_changes": {"files": [], "alive": True, "steps": [], "more": False}}, health)

    def rest(_: object, __: float) -> bool:
        seen.append(last_seen(run, 0))
        watcher.ended.set() if machine.health is Health.WELL else None
        machine.health = health if len(seen) < 2 else Health.WELL
        return False

    handle(0, N1).write(run)
    monkeypatch.setattr(watcher, "rest", rest)
    watcher.follow(NodeFollower(run, 0, FakePool(machine)))
    first, second, last = seen
    assert first == second  # out of reach since the first of both looks
    assert first is not None
    assert (first.alive, first.why.partition(" ")[0], first.unreachable_since is None) == (None, "n1:", False)
    assert last == Seen(0, N1, True)
    watcher.stop()


class Answering(FakePool):
    """Machines that have nothing new to tell, and whose agents live; `held` has how long each look is held."""

    def __init__(self) -> None:
        self.held: list[float] = []
        self.files: list[list[object]] = []
        self.machine = FakeMachine(answers={"poll_changes": self._poll})

    def session(self, address: Address, workdir: str) -> Machine:
        return self.machine

    def _poll(self, wait: float, **_: object) -> dict[str, object]:
        self.held.append(wait)
        return {"files": self.files, "alive": True, "steps": [], "more": False}


def test_a_log_that_is_looked_at_comes_from_the_machine_that_its_node_has_by_now(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page may show it for days; meanwhile the run is started again, with a spare."""
    asked: list[str] = []
    both = threading.Semaphore(0)

    def session(_: ConnectionPool, address: Address, workdir: str) -> Machine:
        if address.host not in asked:
            asked.append(address.host)
            both.release()
        return Answering().machine

    monkeypatch.setattr(mirror, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(ConnectionPool, "session", session)
    handle(0, N1).write(run)
    run.node(0).mkdir(parents=True, exist_ok=True)
    (run.node(0) / "events.jsonl").write_text(
        '{"kind": "go", "node": 0, "attempt": 0, "world_size": 2, "nproc": [2]}\n'
    )
    with mirror.watching_logs(run, AgentsOverSsh().sources(run, present=True), Selection(1)):
        assert both.acquire(timeout=PATIENCE)
        handle(1, N2, N3).write(run)
        assert both.acquire(timeout=PATIENCE)
    assert asked[:2] == ["n1", "n2"]


def test_a_first_start_that_was_torn_away_before_its_agents_were_started_gets_its_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every machine answers that it knows of no agent, and goes on answering so; a cancel would not end it either."""
    profile = {"kind": "ssh", "hosts": ["n1", "n2"]}
    run = create_run(tmp_path, "r-234567", {"kind": "ssh", "nnodes": 2, "hosts": ["n1", "n2"], "profile": profile})
    handle(0, N1, N2, state=HandleStatus.INTENT).write(run)
    for node, machine in enumerate((N1, N2)):
        Seen(0, machine, None).write(run, node)
    monkeypatch.setattr(AgentsOverSsh, "clean_up", lambda *_: [])
    monkeypatch.setattr(AgentsOverSsh, "collect", lambda *_: None)
    assert reconcile(tmp_path, run) is None  # an agent may turn up yet
    monkeypatch.setattr(observe, "SHOWS_ITSELF_SECONDS", 0.0)
    verdict = reconcile(tmp_path, run)
    assert verdict is not None
    assert verdict.reason == "orch submit ended before it had started an agent"


def test_looks_are_held_longer_the_more_nodes_there_are(run: RunDir) -> None:
    many = [Host(Address(f"n{number}")) for number in range(1, 513)]
    handle(0, *many).write(run)
    machine = Answering()
    for node in (0, 1, 511):
        NodeFollower(run, node, machine).update()
    assert machine.held == [1.0, 4.0, 4.0]


def test_what_only_tells_how_far_the_ranks_are_is_no_news(run: RunDir) -> None:
    """Each pass over a run looks at all nodes: were it made for each node's beat, that would take the square."""
    handle(0, N1).write(run)
    machine = Answering()
    follower = NodeFollower(run, 0, machine)

    def brings(*names: str) -> bool:
        machine.files = [[name, 0, None, "1", False] for name in names]
        return follower.update().is_news

    assert brings()  # that its agent lives
    assert not brings()
    assert not brings(
        "nodes/0/attempt_0/beat_0", "nodes/0/attempt_0/rank_0.log", "nodes/0/samples.jsonl", "metrics.jsonl"
    )
    assert brings("nodes/0/attempt_0/beat_0", "nodes/0/events.jsonl")
    assert brings("rank0.done")

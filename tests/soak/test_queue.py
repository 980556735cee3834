"""Two users' runs that wait for the same hosts, in random schedules: every command may be killed, and every cable cut,
at each of its steps; laptops are shut for minutes.

What runs is orch's own from the supervisor's look at a queued run to the start of its agents; hosts, connections and
time are of this process (shared_hosts.py). Then all is quiet, and everything must have had its turn.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.backends.agents import start
from orchestrator.backends.agents.over_ssh import AgentsOverSsh
from orchestrator.backends.mirror import given, upload
from orchestrator.protocol import files
from orchestrator.protocol.places.tickets import FRESH_SECONDS
from orchestrator.protocol.task import NodeTask, Program
from orchestrator.runs.dependencies import AWAITED_PLACES, VALUES_FOR_START, is_queued
from orchestrator.runs.store import RunDir
from orchestrator.specs.profile import SshProfile, as_profile
from orchestrator.supervisor import queue, starting

from .conftest import FULL, Soak
from .shared_hosts import CURRENT, KilledError, Pool, Process, World

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600 if FULL else 120)]

USERS = (1, 2)
STORM = 250  # random events of a schedule
CALM = 3000  # and how long everything may take afterwards


class Inline:
    """A pool of threads that has none: the order of requests is the schedule's."""

    def __init__(self, _: int) -> None:
        pass

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *args: Any) -> SimpleNamespace:
        try:
            value = work(*args)
        except KilledError:
            raise
        return SimpleNamespace(result=lambda: value)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> AgentsOverSsh:
    """The backend of both users, with neither uploads nor a network."""
    found = AgentsOverSsh()
    found.pool = Pool()  # type: ignore[assignment]
    monkeypatch.setattr(futures, "ThreadPoolExecutor", Inline)
    monkeypatch.setattr(files, "_sync", lambda *_: None)
    monkeypatch.setattr(given, "checkpoint_to_give", lambda *_: None)
    monkeypatch.setattr(
        upload,
        "prepare_node",
        lambda *_, **__: {"gpus": 0, "devices": [], "visible": None, "host": "h", "addresses": []},
    )
    monkeypatch.setattr(start, "leader_addresses", lambda *_: ("10.0.0.1",))
    for module in (queue, starting):
        monkeypatch.setattr(module, "backend_for", lambda _: found)
    monkeypatch.setattr(queue, "recorded_start", _recorded_start)
    for name in ("write", "append_event"):
        monkeypatch.setattr(RunDir, name, _with_a_step(getattr(RunDir, name)))
    return found


def _with_a_step(act: Callable[..., Any]) -> Callable[..., Any]:
    def stepping(*args: Any, **values: Any) -> Any:
        if (process := getattr(CURRENT, "process", None)) is not None:
            process.step()
        return act(*args, **values)

    return stepping


def _recorded_start(run: RunDir) -> tuple[Any, dict[str, Any]]:
    profile = as_profile(run.record().profile, SshProfile)
    names = tuple(each.host for each in profile.hosts)
    count, program = run.record().world_size, Program("script", "x")
    tasks = tuple(
        NodeTask(run.run_id, node, len(names), names, count, "/r", "/c", program, "fork", "gloo", "python", (), ())
        for node in range(len(names))
    )
    plan = SimpleNamespace(profile=profile, tasks=tasks, nnodes=len(tasks))
    return plan, {"secrets": {}, "credentials": ""}


def leaves_room(answer: dict[str, Any], name: str, uid: int, needs: int) -> bool:
    """The rule, said once more: besides all that was asked for earlier, and still is, so much is free for the run."""
    held = [each for each in answer["places"].values() if each and (each["run"], each["uid"]) != (name, uid)]
    numbers = {(each["run"], each["uid"]): max(each["number"], each["made"] - 10**10) for each in answer["tickets"]}
    mine = numbers.get((name, uid))
    fresh = [each for each in answer["tickets"] if each["age"] <= FRESH_SECONDS]
    earlier = [each["needs"] for each in fresh if mine is None or numbers[each["run"], each["uid"]] < mine]
    return len(answer["places"]) - len(held) - sum(earlier) >= needs


@dataclass
class Schedule:
    """One world, what its users do, and what went wrong."""

    folder: Path
    backend: AgentsOverSsh
    chance: random.Random
    problems: list[str] = field(default_factory=list)
    processes: dict[str, Process] = field(default_factory=dict)  # by run: one at a time is at work for each
    turns: dict[str, list[bool]] = field(default_factory=dict)
    going: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    away: dict[int, float] = field(default_factory=dict)
    kills: int = 0
    cuts: int = 0

    def __post_init__(self) -> None:
        chance = self.chance
        self.world = World({name: chance.randint(1, 3) for name in "abc"[: chance.randint(1, 3)]})
        self.runs: dict[str, tuple[RunDir, int, dict[str, int]]] = {}
        for number in range(chance.randint(3, 6)):
            self._record(f"r{number}", USERS[number % 2])

    def _record(self, name: str, uid: int) -> None:
        """A run that its submit has left to the supervisor, and was about to lay its tickets."""
        slots = {host: len(each.places) for host, each in self.world.hosts.items()}
        names = self.chance.sample(sorted(slots), self.chance.randint(1, len(slots)))
        count = self.chance.randint(1, min(slots[each] for each in names))
        hosts = [{"host": each} for each in names]
        profile = {"kind": "ssh", "name": "lab", "nodes": len(names), "hosts": hosts, "slots": 3}
        run = RunDir(self.folder / str(uid) / "runs" / name)
        (run.path / "nodes").mkdir(parents=True)
        record = {"kind": "ssh", "nnodes": len(names), "world_size": count, "waits": True, "profile": profile}
        run.write("run.json", {**record, "job": {}})
        run.write(AWAITED_PLACES, {"counts": {str(node): count for node in range(len(names))}, "why": ""})
        run.write(VALUES_FOR_START, {})
        self.runs[name] = (run, uid, dict.fromkeys(names, count))

    # -- what happens

    def look_after(self, name: str) -> None:
        """Let the supervisor get a step further with a run: its look at the queue, then the program that starts it."""
        run, uid, _ = self.runs[name]
        process = self.processes.get(name)
        if process is not None and not process.is_over:
            process.go_on()
            self._see(name)
        elif is_queued(run) and self.turns.pop(name, [False])[0]:
            self.processes[name] = Process(self.world, uid, partial(queue.start_here, run))
        elif is_queued(run):
            turn = self.turns[name] = [False]
            self.processes[name] = Process(self.world, uid, lambda: turn.__setitem__(0, queue.may_start(run)))

    def _see(self, name: str) -> None:
        """Look at what the last step has brought about."""
        process, (run, uid, needs) = self.processes[name], self.runs[name]
        if process.problem is not None:
            self.problems.append(f"{name}: {process.problem!r}")
            process.problem = None
        if name not in self.going | self.ended and not is_queued(run):
            self.going.add(name)
            failed = [event for event in run.events() if event.kind == "submit_failed"]
            if failed:
                self.problems.append(f"{name} failed: {failed}")
            held = {host: len(each.agents.get((name, uid), [])) for host, each in self.world.hosts.items()}
            if {host: count for host, count in held.items() if count} != needs:
                self.problems.append(f"{name} goes on with {held} instead of {needs}")
            for host, answer in process.seen.items():
                if not leaves_room(answer, name, uid, needs[host]):
                    self.problems.append(f"{name} has taken what others came for earlier, on {host}: {answer}")

    def end(self, name: str) -> None:
        """The run has ended on its hosts, and its supervisor leaves nothing there."""
        run, uid, _ = self.runs[name]
        self.world.end_run(name, uid)
        self.going.discard(name)
        self.ended.add(name)
        self.processes[name] = Process(self.world, uid, lambda: self.backend.clean_up(run))

    def kill(self, name: str) -> None:
        """kill -9, where it just stands."""
        process = self.processes.get(name)
        if process is not None and not process.is_over:
            process.kill()
            self.kills += 1
            self._see(name)

    def storm(self) -> None:
        """Whatever may happen, in any order."""
        for _ in range(STORM):
            name = self.chance.choice(sorted(self.runs))
            uid = self.runs[name][1]
            what = self.chance.random()
            if what < 0.02:
                self.world.pass_time(self.chance.choice((1.0, 5.0, 20.0, 70.0)))
            elif what < 0.04:
                self.kill(name)
            elif what < 0.06 and (process := self.processes.get(name)) is not None:
                process.cut.add(self.chance.choice(sorted(self.world.hosts)))
                self.cuts += 1
            elif what < 0.065:
                for other, (_, whose, _) in self.runs.items():
                    if whose == uid:
                        self.kill(other)
                self.away[uid] = self.world.now + self.chance.uniform(5, 2 * FRESH_SECONDS)
            elif what < 0.09 and self.going:
                self.end(self.chance.choice(sorted(self.going)))
            elif self.away.get(uid, 0.0) <= self.world.now:
                self.look_after(name)
            self.check()

    def calm(self) -> None:
        """Nobody is killed any more, all laptops are open, runs end: everything has its turn."""
        self.world.pass_time(2 * FRESH_SECONDS)
        for _ in range(CALM):
            if len(self.ended) == len(self.runs):
                break
            for name in self.chance.sample(sorted(self.runs), len(self.runs)):
                self.look_after(name)
                self.check()
            self.world.pass_time(0.2)
            if self.going and self.chance.random() < 0.05:
                self.end(self.chance.choice(sorted(self.going)))
        if waiting := sorted(self.runs.keys() - self.ended):
            self.problems.append(f"{waiting} never had their turn: {self.world.hosts}")
        for name in self.runs:
            self.end(name)
            while not self.processes[name].is_over:
                self.processes[name].go_on()
        self.world.pass_time(2 * FRESH_SECONDS)
        left = {name: (host.tickets, host.places) for name, host in self.world.hosts.items()}
        if any(tickets or any(places.values()) for tickets, places in left.values()):
            self.problems.append(f"left: {left}")

    def check(self) -> None:
        """No place is held by an agent that is not there, or by two."""
        for host in self.world.hosts.values():
            names = [name for each in host.agents.values() for name in each]
            if len(names) != len(set(names)) or any(host.places[name] not in host.agents for name in names):
                self.problems.append(f"double hold on {host.name}: {host.agents} {host.places}")


def test_two_users_in_any_order_with_kills_and_cuts_at_each_step(
    tmp_path: Path, backend: AgentsOverSsh, soak: Soak
) -> None:
    count, kills, cuts = soak.of(200, 15), 0, 0
    for number in range(count):
        seed = soak.chance.randrange(1 << 32)
        schedule = Schedule(tmp_path / str(number), backend, random.Random(seed))
        schedule.storm()
        schedule.calm()
        for process in schedule.processes.values():
            if not process.is_over:
                process.kill()
        kills, cuts = kills + schedule.kills, cuts + schedule.cuts
        needs = {name: (uid, each) for name, (_, uid, each) in schedule.runs.items()}
        for problem in schedule.problems[:3]:
            soak.fail(f"schedule {number}, seed {seed}: {json.dumps(needs)}: {problem}")
    assert kills, cuts
    soak.end(f"schedules of two users' queue, {kills} kills, {cuts} cut cables", count)

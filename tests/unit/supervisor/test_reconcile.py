"""A pass over a run: each file is read once, none when nothing has changed, and time still does its work."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.backends.agents.handle import Handle
from orchestrator.backends.settings import Host
from orchestrator.looking.state import state_of
from orchestrator.node.system.processes import Process, identify, is_alive
from orchestrator.protocol import reading
from orchestrator.runs.start_lock import ELSEWHERE_SECONDS, STARTING, being_started
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir, append_line, create_run
from orchestrator.supervisor import observe
from orchestrator.supervisor.reconcile import Reconciler, reconcile
from orchestrator.transport.address import HERE, Address
from tests.events import event


@pytest.fixture
def sleeper() -> Iterator[Process]:
    """An agent that lives until it is killed."""
    with subprocess.Popen(["sleep", "600"]) as child:
        found = identify(child.pid)
        assert found is not None
        yield found
        child.kill()


def of(process: Process | None) -> dict[str, int]:
    return {"pid": process.pid, "started": process.started} if process else {"pid": 1 << 22, "started": 1}


def made(root: Path, *agents: Process | None, **record: Any) -> RunDir:
    """A run whose submit got through, and with it these agents; None is one that is gone."""
    hosts = ["localhost"] * len(agents)
    run = create_run(root, "r-234567", {"kind": "local", "nnodes": len(agents), "hosts": hosts, **record})
    run.append_event(event("submitted"))
    found = {n: (of(agent)["pid"], of(agent)["started"]) for n, agent in enumerate(agents)}
    Handle(HandleStatus.SUBMITTED, 0, (Host(Address(HERE)),) * len(agents), found, tuple(range(len(agents)))).write(run)
    for node in range(len(agents)):
        run.node(node).mkdir()
        say(run, node, "agent_started", host="localhost")
    return run


def say(run: RunDir, node: int, kind: str, **values: Any) -> None:
    append_line(run.node(node) / "events.jsonl", json.dumps({"kind": kind, "node": node, "time": 1.0, **values}))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file is opened from here on, by its path below the run."""
    counts: Counter[str] = Counter()
    real, real_descriptor = builtins.open, reading.descriptor_of

    def count(path: Any) -> None:
        if isinstance(path, str | os.PathLike):
            counts[str(path).rpartition("/r-234567/")[2]] += 1

    def counting(path: Any, *args: Any, **values: Any) -> Any:
        count(path)
        return real(path, *args, **values)

    def counting_descriptors(path: Any, *args: Any, **values: Any) -> int:
        count(path)
        return real_descriptor(path, *args, **values)

    monkeypatch.setattr(builtins, "open", counting)
    monkeypatch.setattr(reading, "descriptor_of", counting_descriptors)
    return counts


def events_in(opened: Counter[str]) -> dict[str, int]:
    return {path: count for path, count in opened.items() if path.endswith("events.jsonl")}


def test_each_event_file_is_read_once_a_pass_and_then_only_when_it_has_changed(
    tmp_path: Path, sleeper: Process, opened: Counter[str]
) -> None:
    run = made(tmp_path, sleeper, sleeper)
    reconciler = Reconciler(tmp_path, run)
    opened.clear()
    assert reconciler.run_once() is None
    assert events_in(opened) == {"events.jsonl": 1, "nodes/0/events.jsonl": 1, "nodes/1/events.jsonl": 1}
    assert opened["run.json"] == 1
    opened.clear()
    for _ in range(5):
        assert reconciler.run_once() is None
    # Who lives is looked up each time, by the agents' own words; of the run's files nothing else is read.
    agents = {"handle.json", "nodes/0/agent.json", "nodes/1/agent.json"}
    assert {path for path in opened if not path.startswith("/proc/")} <= agents
    say(run, 1, "started", ranks=[1, 2])
    opened.clear()
    assert reconciler.run_once() is None
    assert events_in(opened) == {"nodes/1/events.jsonl": 1}


def test_a_pass_that_ends_a_run_reads_each_event_file_once(tmp_path: Path, opened: Counter[str]) -> None:
    run = made(tmp_path, None)
    say(run, 0, "gang_ended", attempt=0, outcome="failed", cause="user_error", reason="rank 0 said no")
    say(run, 0, "agent_ended", outcome="failed")
    opened.clear()
    verdict = reconcile(tmp_path, run)
    assert verdict is not None
    assert verdict.reason == "rank 0 said no"
    assert events_in(opened) == {"events.jsonl": 1, "nodes/0/events.jsonl": 1}
    assert json.loads((run.path / "verdict.json").read_text())["outcome"] == "failed"


def test_a_node_that_joined_and_said_no_last_words_is_lost_once_the_run_has_ended(tmp_path: Path) -> None:
    run = made(tmp_path, None, None)
    say(run, 1, "agent_started", host="localhost", pid=1, started=1)
    say(run, 1, "reached_leader", addr="127.0.0.1")
    say(run, 0, "gang_ended", attempt=0, outcome="failed", cause="user_error", reason="rank 0 said no")
    say(run, 0, "agent_ended", outcome="failed")
    assert reconcile(tmp_path, run) is not None
    assert [node.state for node in state_of(run).nodes] == ["ended", "lost"]


def test_a_hint_about_this_machine_is_there_before_the_verdict_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "proj/tools").mkdir(parents=True)
    (tmp_path / "proj/pkg.py").touch()
    run = made(tmp_path, None, code_dir=str(tmp_path / "proj/tools"))
    error = {"type": "ModuleNotFoundError", "message": "No module named 'pkg'"}
    culprit = {"rank": 0, "node": 0, "host": "localhost", "code": 1, "signal": None, "error": error}
    say(run, 0, "attempt_failed", attempt=0, culprit=culprit, cause="user_error", step=None)
    say(run, 0, "gang_ended", attempt=0, outcome="failed", cause="user_error", reason="rank 0", culprit=culprit)
    say(run, 0, "agent_ended", outcome="failed")
    before, verdict = state_of(run).verdict, reconcile(tmp_path, run)
    assert before is not None
    assert verdict is not None
    assert before.hint == verdict.hint
    assert f"pkg is in {tmp_path}/proj, outside the code folder" in verdict.hint


def test_an_agent_that_dies_without_a_word_is_seen_though_no_file_changes(tmp_path: Path, sleeper: Process) -> None:
    run = made(tmp_path, sleeper)
    reconciler = Reconciler(tmp_path, run)
    assert [reconciler.run_once(), reconciler.run_once()] == [None, None]
    os.kill(sleeper.pid, 9)
    os.waitpid(sleeper.pid, 0)
    verdict = reconciler.run_once()
    assert verdict is not None
    assert "vanished without a word" in verdict.reason


def test_time_alone_ends_who_stays_behind(tmp_path: Path, sleeper: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made(tmp_path, None, sleeper)
    say(run, 0, "gang_ended", attempt=0, outcome="failed", cause="infra", reason="node 1 hangs")
    say(run, 0, "agent_ended", outcome="failed")
    reconciler, now = Reconciler(tmp_path, run), time.time()
    assert [reconciler.run_once(), reconciler.run_once()] == [None, None]
    assert is_alive(sleeper)
    monkeypatch.setattr(observe.time, "time", lambda: now + observe.OVERDUE_SECONDS + 5)
    verdict = reconciler.run_once()
    assert verdict is not None
    assert verdict.reason == "node 1 hangs"
    assert not is_alive(sleeper)
    assert not (tmp_path / "live" / run.run_id).exists()


def test_an_interrupted_start_is_given_up_once_what_it_had_begun_would_have_shown_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process may be alive (a notebook), and sbatch or an agent may show itself a moment later."""
    now = time.time()
    run = create_run(tmp_path, "r-234567", {"kind": "local", "nnodes": 1, "created": now})
    run.write("handle.json", {"state": "intent", "agents": {}})
    monkeypatch.setattr(observe.time, "time", lambda: now + observe.SHOWS_ITSELF_SECONDS + 5)
    with being_started(run):
        assert reconcile(tmp_path, run) is None
    monkeypatch.setattr(observe.time, "time", lambda: now)
    assert reconcile(tmp_path, run) is None
    monkeypatch.setattr(observe.time, "time", lambda: now + observe.SHOWS_ITSELF_SECONDS + 5)
    verdict = reconcile(tmp_path, run)
    assert verdict is not None
    assert "orch submit ended before it had started" in verdict.reason


def test_a_start_by_another_machine_whose_lock_is_not_seen_here_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create_run(tmp_path, "r-234567", {"kind": "local", "nnodes": 1, "created": time.time()})
    (run.path / STARTING).write_text("elsewhere")
    assert reconcile(tmp_path, run) is None
    later = time.time() + ELSEWHERE_SECONDS
    monkeypatch.setattr(time, "time", lambda: later)
    verdict = reconcile(tmp_path, run)
    assert verdict is not None
    assert verdict.reason == "orch submit ended before it had started an agent"


def test_what_is_recorded_in_a_pass_counts_in_the_same_pass(tmp_path: Path) -> None:
    run = create_run(tmp_path, "r-234567", {"kind": "local", "nnodes": 2, "created": 1.0})
    verdict = reconcile(tmp_path, run)
    assert verdict is not None
    assert verdict.reason == "orch submit ended before it had started an agent"
    assert [event.kind for event in run.events()] == ["found_lost", "swept"]


@pytest.mark.parametrize(
    ("free", "lack"),
    [
        ({"f_bavail": 0, "f_files": 9, "f_favail": 9}, "space"),
        ({"f_bavail": 9, "f_files": 9, "f_favail": 0}, "inodes"),
        ({"f_bavail": 9, "f_files": 0, "f_favail": 0}, ""),  # a file system that counts no inodes
    ],
)
def test_a_state_folder_in_which_nothing_can_be_recorded_is_named(
    tmp_path: Path, sleeper: Process, monkeypatch: pytest.MonkeyPatch, free: dict[str, int], lack: str
) -> None:
    run = made(tmp_path, sleeper)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**free))
    said = f"nothing can be recorded in {tmp_path}: its file system has no {lack} left" if lack else ""
    assert state_of(run).detail.startswith(said)
    assert bool(said) is ("recorded" in state_of(run).detail)


def test_looking_writes_nothing(tmp_path: Path, sleeper: Process) -> None:
    run = made(tmp_path, sleeper)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert state_of(run).state == "starting"
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before

"""Which processes a drill's fault is for: the run's own, of this node and this user, by record and mark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.node.server import fault
from orchestrator.node.server.fault import NoTargetError, find_targets, inject
from orchestrator.node.system.processes import MARK, end_marked, identify, mark
from orchestrator.protocol.debugging.fault import Fault
from tests.patience import PATIENCE

RUN = f"drill-{os.getpid():06d}"  # of this process: another may run the same tests
WAIT = "import time; print(flush=True); time.sleep(600)"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {WAIT!r}])
print(child.pid, flush=True)
child.wait()
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a program with the mark of a run's node; it is up when this returns, and gone after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, run: str = RUN, node: int = 0) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, MARK: mark(run, node)}, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    end_marked(RUN)
    for process in started:
        process.kill()
        with process:
            process.wait()


def folder(tmp_path: Path, agent: int = 0, pids: dict[str, int] | None = None) -> str:
    """A run's folder in which node 0 has recorded its agent and its ranks."""
    node = tmp_path / RUN / "nodes" / "0"
    node.mkdir(parents=True)
    if found := identify(agent):
        (node / "agent.json").write_text(json.dumps({"pid": found.pid, "started": found.started}))
    events = [{"kind": "launcher_started", "attempt": 0, "pids": each} for each in ({"7": 1}, pids or {})]
    (node / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + "{torn")
    return str(tmp_path / RUN)


def pid_of_child(process: subprocess.Popen[str]) -> int:
    """Return the number of a PARENT's child once that is up: while it is exec'd its environment can't be read."""
    assert process.stdout is not None
    said = [process.stdout.readline(), process.stdout.readline()]  # the child's line is empty
    return int("".join(said))


def targets_of(run_dir: str, what: Fault) -> tuple[list[int], int | None]:
    targets = find_targets(run_dir, 0, what)
    return sorted(process.pid for process in targets.processes), targets.rank


def test_a_rank_is_the_last_recorded_one_and_its_parent_the_launcher(tmp_path: Path, start: Start) -> None:
    launcher, agent = start(PARENT), start(WAIT, "other-bbbbbb")
    rank = pid_of_child(launcher)
    run_dir = folder(tmp_path, agent.pid, {"0": 1, "3": rank})
    assert targets_of(run_dir, Fault.RANK) == ([rank], 3)
    assert targets_of(run_dir, Fault.LAUNCHER) == ([launcher.pid], None)
    assert targets_of(run_dir, Fault.AGENT) == ([agent.pid], None)
    assert targets_of(run_dir, Fault.NODE) == (sorted([agent.pid, launcher.pid, rank]), None)


def test_other_runs_other_nodes_and_reused_numbers_are_nobodys(tmp_path: Path, start: Start) -> None:
    stranger, elsewhere = start(WAIT, "drill-bbbbbb"), start(WAIT, node=1)
    for each in (stranger, elsewhere):
        assert each.stdout is not None
        each.stdout.readline()
    run_dir = folder(tmp_path, pids={"0": stranger.pid, "1": elsewhere.pid})
    reused = {"pid": stranger.pid, "started": 1}  # the number was another process's
    (Path(run_dir) / "nodes/0/agent.json").write_text(json.dumps(reused))
    for what in (Fault.RANK, Fault.LAUNCHER, Fault.AGENT, Fault.NODE):
        with pytest.raises(NoTargetError):
            find_targets(run_dir, 0, what)
    assert inject(run_dir, "0", "node", "0") == 1
    assert (stranger.poll(), elsewhere.poll()) == (None, None)


def test_a_freeze_stops_all_and_lets_all_go_on(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = start(PARENT)
    rank = pid_of_child(launcher)
    meanwhile = list[int]()

    def look(_: float) -> None:
        for pid in (launcher.pid, rank):
            while _state(pid) != "T":  # a signal reaches a process when it is scheduled next
                os.sched_yield()
            meanwhile.append(pid)

    monkeypatch.setattr(fault.time, "sleep", look)
    monkeypatch.setattr(fault.signal, "signal", lambda *_: None)
    assert inject(folder(tmp_path), "0", "freeze", "20") == 0
    assert meanwhile == [launcher.pid, rank]
    assert "T" not in (_state(launcher.pid), _state(rank))
    assert len(json.loads(capsys.readouterr().out)["processes"]) == 2


def test_a_kill_tells_first_whom(tmp_path: Path, start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    launcher = start(PARENT)
    rank = pid_of_child(launcher)
    assert inject(folder(tmp_path, pids={"0": rank}), "0", "node", "0") == 0
    assert launcher.wait(PATIENCE) == -signal.SIGKILL
    told = json.loads(capsys.readouterr().out)
    assert sorted(int(each.split()[0]) for each in told["processes"]) == sorted([launcher.pid, rank])


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

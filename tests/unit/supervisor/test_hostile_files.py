"""A job can't keep its own run alive: whatever it makes of the files in its run's folder, every command works."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from orchestrator.cli import orch
from orchestrator.errors import StoreError
from orchestrator.node.system.processes import Process, identify, is_alive
from orchestrator.operations import runs
from orchestrator.runs.store import RunDir
from orchestrator.supervisor import background
from tests.unit.supervisor.test_reconcile import made, say

IN_NODE = ("agent.json", "events.jsonl", "metrics.jsonl", "samples.jsonl", "attempt_0", "launcher.log", "reserve.json")
FILES = (
    *(f"nodes/0/{name}" for name in IN_NODE), "nodes/0", "nodes", "rank0.done", "metrics.jsonl", "result.json",
    "cancel.json", "checkpoints", "outputs", "code", "events.jsonl", "plan.json", "labels.json", "handle.json",
    "run.json", "reserve.json", "code.json", "starting", "trackers",
)  # fmt: skip


HOW = ("link", "pipe", "folder", "garbage", "large")
ONE_EACH = [(name, HOW[number % 5]) for number, name in enumerate(FILES[1:])]
FIRST = [*((name, how) for name in FILES[:2] for how in HOW), *ONE_EACH[1:]]
REST = [(name, how) for name in FILES for how in HOW if (name, how) not in FIRST]
OTHERS = pytest.mark.full(
    "tests/unit/supervisor/test_hostile_files.py::test_no_file_that_a_job_may_write_stops_a_command"
)


@pytest.fixture
def agent() -> Iterator[Process]:
    with subprocess.Popen(["sleep", "600"]) as child:
        found = identify(child.pid)
        assert found is not None
        yield found
        child.kill()


def spoil(run: RunDir, name: str, how: str, tmp_path: Path) -> None:
    place = run.path / name
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(exist_ok=True)
    match how:
        case "link":
            (tmp_path / "private").write_text("private")
            place.symlink_to(tmp_path / "private")
        case "pipe":
            os.mkfifo(place)
        case "folder":
            place.mkdir()
        case "large":
            place.touch()
            os.truncate(place, 1 << 30)  # sparse
        case _:
            place.write_bytes(b"\xff{")


def call(*words: str) -> Result:
    return CliRunner().invoke(orch, words, standalone_mode=False)


@pytest.mark.parametrize(("name", "how"), [*FIRST, *(pytest.param(*case, marks=OTHERS) for case in REST)])
def test_no_file_that_a_job_may_write_stops_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: Process, name: str, how: str
) -> None:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(background, "attend", lambda _: None)
    monkeypatch.setattr(runs, "CANCEL_MARGIN", 0.0)
    run = made(tmp_path / "home", agent)
    say(run, 0, "go", attempt=0, world_size=1)
    run.write("nodes/0/agent.json", {"pid": agent.pid, "started": agent.started})
    spoil(run, name, how, tmp_path)
    said = {}
    for words in (
        ("status",), ("status", run.run_id), ("why", run.run_id), ("wait", run.run_id, "--timeout", "0"),
        ("cancel", "--now", run.run_id), ("gc",), ("rm", "-y", run.run_id),
    ):  # fmt: skip
        done = call(*words)
        if name == "run.json" and isinstance(done.exception, StoreError) and words[0] in ("status", "why", "wait"):
            assert f"orch cancel {run.run_id}" in done.exception.hint  # nothing else tells what the run is
        elif done.exception is not None:
            said[words[0]] = repr(done.exception)
    assert said == {}
    assert not is_alive(agent)
    assert not run.path.exists()
    assert (tmp_path / "private").exists() == (how == "link")

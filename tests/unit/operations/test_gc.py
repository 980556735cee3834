"""gc ends what nobody owns, and nothing else."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.errors import RunNotFoundError, StoreError
from orchestrator.looking.state import state_of
from orchestrator.node.server import leftovers
from orchestrator.node.system import processes
from orchestrator.node.system.processes import MARK, identify, is_alive
from orchestrator.operations import gc as operation
from orchestrator.operations.gc import Finding, collect_garbage, collect_on_machines
from orchestrator.operations.removal import removal_of
from orchestrator.protocol.files import temporary_name
from orchestrator.runs.store import RunDir, create_run, find_run, remove_run
from tests.events import event
from tests.patience import PATIENCE

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start processes; only these are visible to gc, so that other tests' runs on this machine are safe from it."""
    children: list[subprocess.Popen[bytes]] = []
    real = processes.marked_processes

    def run(mark: str | None, **extra: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **({MARK: mark} if mark else {}), **extra}
        argv = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
        child = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE)
        children.append(child)
        assert child.stdout is not None
        child.stdout.readline()
        return child

    monkeypatch.setattr(
        processes, "marked_processes", lambda: [e for e in real() if e.process.pid in {c.pid for c in children}]
    )
    monkeypatch.setattr(operation, "start_supervisor", lambda _root: None)
    yield run
    for child in children:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def recorded(root: Path, run_id: str, *, ended: bool, agent: int | None = None) -> RunDir:
    run = create_run(root, run_id, {
        "run_id": run_id, "kind": "local", "nnodes": 1, "created": time.time(), "hosts": ["localhost"],
        "submitter": {"pid": 0, "started": 0, "host": "elsewhere"},
    })  # fmt: skip
    if agent is not None:
        run.node(0).mkdir()
        process = identify(agent)
        assert process is not None
        run.write("nodes/0/agent.json", {"pid": agent, "started": process.started})
    if ended:
        run.write("verdict.json", {"outcome": "failed"})
        (root / "live" / run_id).unlink()
    return run


def old(path: Path) -> Path:
    os.utime(path, (1, 1))
    return path


def gc(root: Path, **options: Any) -> dict[str, str]:
    found = collect_garbage(root, **{"dry_run": False, "unknown": False, **options})
    return {each.what.split("/")[-1]: each.done for each in found}


def ended(child: subprocess.Popen[bytes]) -> bool:
    return child.poll() is not None


def test_processes_of_ended_runs_go_and_of_live_ones_stay(root: Path, start: Start) -> None:
    agents = [start(None), start(None)]
    recorded(root, "gone-aaa", ended=True)
    residues = [start("gone-aaa/0"), start("gone-aaa/1")]
    lives = []
    for number, agent in enumerate(agents):
        recorded(root, f"live-{number}", ended=False, agent=agent.pid)
        lives.append(start(f"live-{number}/0"))
    names = [f"{child.pid} (python3)" for child in residues]
    dry = gc(root, dry_run=True)
    assert set(dry.values()) == {"would be ended"}
    assert len(dry) == 2
    assert not any(map(ended, residues))
    done = gc(root)
    assert [name.split()[0] for name in done] == [name.split()[0] for name in names]
    assert set(done.values()) == {"ended"}
    for child in residues:
        child.wait(PATIENCE)
    assert not any(map(ended, [*agents, *lives]))
    assert gc(root) == {}


def test_runs_unknown_here_are_listed_and_ended_only_when_asked_and_dead(
    root: Path, start: Start, tmp_path: Path
) -> None:
    agent = start(None)
    elsewhere = recorded(tmp_path / "other", "else-alive", ended=False, agent=agent.pid)
    alive = start("else-alive/0", ORCH_RUN_DIR=str(elsewhere.path))
    dead = recorded(tmp_path / "other", "else-dead", ended=False)
    lost = [start("else-dead/0", ORCH_RUN_DIR=str(dead.path)), start("nowhere-x/0")]
    assert set(gc(root).values()) == {"kept"}
    assert len(gc(root, unknown=True, dry_run=True)) == 3
    assert not any(map(ended, [alive, *lost]))
    done = gc(root, unknown=True)
    assert sorted(done.values()) == ["ended", "ended", "kept"]
    for child in lost:
        child.wait(PATIENCE)
    assert not ended(alive)
    agent.kill()
    agent.wait()
    assert list(gc(root, unknown=True).values()) == ["ended"]
    alive.wait(PATIENCE)


def test_processes_of_a_run_whose_folder_was_deleted_under_it_are_ended(root: Path, start: Start) -> None:
    run = recorded(root, "gone-bbb222", ended=False)
    rank = start("gone-bbb222/0")
    shutil.rmtree(run.path)
    with pytest.raises(RunNotFoundError, match="the folder of run gone-bbb222 was deleted") as caught:
        find_run(root, "gone-b")
    assert "orch gc" in caught.value.hint
    run.node(0).mkdir(parents=True)  # as its agent does with the next event
    assert state_of(run).verdict.hint == caught.value.hint
    assert {name.split()[0]: done for name, done in gc(root).items()}[str(rank.pid)] == "ended"
    rank.wait(PATIENCE)


def test_a_process_without_the_mark_or_of_another_user_is_not_seen(root: Path, start: Start, monkeypatch) -> None:
    recorded(root, "gone-aaa", ended=True)
    plain = start(None)
    marked = start("gone-aaa/0")
    with monkeypatch.context() as patch:
        patch.setattr(leftovers.os, "getuid", lambda: 54321)
        assert gc(root) == {}
    assert list(gc(root).values()) == ["ended"]
    marked.wait(PATIENCE)
    assert not ended(plain)


def test_a_run_whose_agents_are_dead_gets_its_verdict(root: Path, start: Start) -> None:
    agent = start(None)
    run = recorded(root, "crash-aaa", ended=False, agent=agent.pid)
    run.append_event(event("submitted"))
    rank = start("crash-aaa/0")
    assert gc(root) == {}
    agent.kill()
    agent.wait()
    assert gc(root, dry_run=True) == {"crash-aaa": "would be ended"}
    assert gc(root) == {"crash-aaa": "ended"}
    assert (run.path / "verdict.json").exists()
    rank.wait(PATIENCE)
    assert not (root / "live" / "crash-aaa").exists()


def test_what_a_killed_submit_left(root: Path, start: Start) -> None:
    (root / "live").mkdir()
    for name in ("early-a", "young-b"):
        (root / "live" / name).touch()
        (root / "runs" / name / "nodes").mkdir(parents=True)
        (root / "runs" / name / ".run.json.1.tmp").touch()
    old(root / "live" / "early-a")
    old(root / "runs" / "early-a")
    full = root / "runs" / "lost-c"
    (full / "nodes" / "0").mkdir(parents=True)
    (full / "nodes" / "0" / "events.jsonl").write_text("{}")
    old(full)
    found = collect_garbage(root, dry_run=False, unknown=True)
    assert [(each.kind, Path(each.what).name, each.done) for each in found] == [
        ("mark", "early-a", "removed"), ("folder", "early-a", "removed"), ("folder", "lost-c", "kept"),
    ]  # fmt: skip
    assert "orch rm lost-c" in found[2].why
    assert (root / "runs" / "young-b").exists()
    assert (full / "nodes/0/events.jsonl").exists()


def test_temporary_files_and_half_fetched_inputs(root: Path, start: Start) -> None:
    run = recorded(root, "done-aaa", ended=True)
    run.node(0).mkdir()
    leftovers = [run.path / ".run.json.77.tmp", run.node(0) / "agent.json.77.tmp", root / ".index.5.tmp"]
    for path in leftovers:
        path.write_text("half")
        old(path)
    orphan = Path(temporary_name(run.path / "verdict.json").replace(f".{os.getpid()}.tmp", f".{2**22 + 1}.tmp"))
    orphan.touch()  # a moment ago, by a process that is gone
    leftovers.append(orphan)
    young = Path(temporary_name(run.path / "plan.json"))
    young.touch()
    half, going = root / "runs/.removed-gone-bbb-1a", root / "runs/.removed-gone-ccc-2b"
    for path in (half / "nodes", going):
        path.mkdir(parents=True)
    old(half)
    cut_off = Path(temporary_name(root / "runs/removed-gone-ddd").replace(f".{os.getpid()}.tmp", f".{2**22 + 1}.tmp"))
    cut_off.mkdir()  # a moment ago, by an rm that was killed
    (run.path / "code").mkdir()
    user_file = old_file(run.path / "code" / ".mine.tmp")
    for name in (
        ".tmp-step_00000009-1-ab@h",
        ".gone-step_00000001-1-ab@h",
        ".old-step_00000002-1-ab@h",
        "step_00000003",
    ):
        (run.path / "checkpoints" / name).mkdir(parents=True)
    (root / "inputs").mkdir()
    for name in ("a" * 64, "b" * 64):
        (root / "inputs" / f"{name}.partial").write_text("half")
        (root / "inputs" / f"{name}.lock").touch()
    whole = root / "inputs" / ("c" * 64)
    whole.write_text("whole")
    with open(root / "inputs" / f"{'b' * 64}.lock") as fetching:
        fcntl.flock(fetching, fcntl.LOCK_EX)
        dry = gc(root, dry_run=True)
        assert all(path.exists() for path in leftovers)
        done = gc(root)
    assert set(dry) == set(done)
    assert set(done.values()) == {"removed"}
    assert not any(path.exists() for path in leftovers)
    assert young.exists()
    assert [path for path in (half, going, cut_off) if path.exists()] == [going]
    assert user_file.exists()
    assert whole.exists()
    assert sorted(path.name for path in (run.path / "checkpoints").iterdir()) == [
        ".old-step_00000002-1-ab@h", "step_00000003"
    ]  # fmt: skip
    assert [path.name[0] for path in (root / "inputs").glob("*.partial")] == ["b"]


@pytest.mark.parametrize(
    "name", ["checkpoints/.tmp-step_00000009-1-ab@h", "nodes/0/agent.json.77.tmp", ".run.json.7.tmp"]
)
def test_a_link_that_a_program_has_made_is_removed_and_what_it_leads_to_stays(
    root: Path, start: Start, tmp_path: Path, name: str
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").write_text("whole")
    os.utime(precious, (1, 1))
    run = recorded(root, "done-aaa", ended=True)
    link = run.path / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(precious)
    assert gc(root) == {link.name: "removed"}
    assert not link.is_symlink()
    assert (precious / "thesis").read_text() == "whole"


def test_links_within_a_run_are_removed_with_it_and_what_they_lead_to_stays(root: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").write_text("whole")
    run = recorded(root, "done-aaa", ended=True)
    for name in ("checkpoints", "outputs", "link"):
        (run.path / name).symlink_to(precious)
    (run.path / "file").symlink_to(precious / "thesis")
    removal_of(run)
    remove_run(root, run)
    assert not run.path.exists()
    assert (precious / "thesis").read_text() == "whole"


def old_file(path: Path) -> Path:
    path.touch()
    return old(path)


def test_damage_is_kept_and_named(root: Path, start: Start) -> None:
    run = recorded(root, "broken-aaa", ended=False)
    (run.path / "run.json").write_text("{")
    child = start("broken-aaa/0")
    assert gc(root) == {"broken-aaa": "kept"}
    assert not ended(child)
    assert gc(root / "nothing") == {f"{child.pid} ({command(child)})": "kept"}


def command(child: subprocess.Popen[bytes]) -> str:
    process = identify(child.pid)
    assert process is not None
    assert is_alive(process)
    return process.command


def test_findings_are_json() -> None:
    json.dumps(Finding("file", "x", "removed", "y").to_json())


def test_another_users_runs_may_be_listed_on_machines_and_not_removed(tmp_path: Path, monkeypatch) -> None:
    found = [Finding("process", "5", "would be ended", "its run has ended")]
    backend = SimpleNamespace(collect_garbage=lambda *_, dry_run: found if dry_run else [])

    def refuse(root: Path) -> None:
        raise StoreError(f"{root} is another user's")

    monkeypatch.setattr(operation, "backend_of", lambda _: backend)
    monkeypatch.setattr(operation, "check_own", refuse)
    assert collect_on_machines(tmp_path, object(), dry_run=True, unknown=False) == found  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="another user's"):
        collect_on_machines(tmp_path, object(), dry_run=False, unknown=False)  # type: ignore[arg-type]

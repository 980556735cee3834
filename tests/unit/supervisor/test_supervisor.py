"""The background process: what it is started with, and where it refuses to be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.errors import StoreError
from orchestrator.looking.state import state_of
from orchestrator.node.system.processes import identify, is_stopped
from orchestrator.operations.debugging.shell import shell
from orchestrator.operations.gc import collect_garbage
from orchestrator.operations.runs import cancel, remove
from orchestrator.operations.submission.delegate import find_pointer
from orchestrator.runs.claims import record_name
from orchestrator.runs.store import RunDir, create_run
from orchestrator.runs.sweeps import make_sweep
from orchestrator.supervisor import supervisor
from orchestrator.supervisor.background import attended_root, start_supervisor, supervisor_lock
from orchestrator.supervisor.queue import start_here
from orchestrator.supervisor.reconcile import reconcile
from orchestrator.supervisor.supervisor import prune, supervise


def children() -> set[int]:
    return {int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


def test_it_imports_nothing_from_the_state_folder(tmp_path: Path) -> None:
    package = tmp_path / "orchestrator"
    package.mkdir()
    (package / "__init__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    before = children()
    start_supervisor(tmp_path)
    (started,) = children() - before
    _, status = os.waitpid(started, 0)
    assert (status, (tmp_path / "supervisor.log").read_text()) == (0, "")
    assert not (tmp_path / "ran").exists()


def test_one_that_was_stopped_goes_on_with_the_next_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the lock: without that no run would end any more, and `status` would show old numbers."""
    create_run(tmp_path, "r-222222", {"run_id": "r-222222", "nnodes": 1, "kind": "local", "created": 1.0})
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    with supervisor_lock(tmp_path) as is_ours, subprocess.Popen(["sleep", "600"]) as process:
        found = identify(process.pid)
        assert is_ours
        assert found is not None
        who = {"pid": found.pid, "started": found.started, "host": os.uname().nodename}
        try:
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            for another in ({**who, "started": 1}, {**who, "host": "elsewhere"}):
                (tmp_path / record_name(os.uname().nodename)).write_text(json.dumps(another))
                attended_root()
                assert is_stopped(process.pid)
            (tmp_path / record_name(os.uname().nodename)).write_text(json.dumps(who))
            attended_root()
            os.waitpid(process.pid, os.WCONTINUED)
            assert not is_stopped(process.pid)
        finally:
            process.kill()


def test_nothing_is_started_ended_or_written_where_others_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create_run(tmp_path, "r-222222", {"run_id": "r-222222", "nnodes": 1, "kind": "local", "created": 1.0})
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    tmp_path.chmod(0o777)
    before = (children(), sorted(tmp_path.rglob("*")))
    assert attended_root() == tmp_path
    assert not state_of(run).is_final  # it can be looked at
    for act in (
        lambda: start_supervisor(tmp_path),
        lambda: supervise(tmp_path),
        lambda: create_run(tmp_path, "r-333333", {}),
        lambda: make_sweep(tmp_path, "s-222222", None, {}),
        lambda: reconcile(tmp_path, run),
        lambda: cancel(tmp_path, run, now=True),
        lambda: remove(tmp_path, run),
        lambda: prune(tmp_path, 1),
        lambda: start_here(run),
        lambda: collect_garbage(tmp_path, dry_run=False, unknown=False),
        lambda: shell(run, 0, [], terminal=False),
    ):
        with pytest.raises(
            StoreError, match=r"may be written by others \(mode 0777\): orch does not start, end or change"
        ):
            act()
    assert (children(), sorted(tmp_path.rglob("*"))) == before


@pytest.mark.parametrize("folder", ["runs", "live", "runs/r-222222"])
def test_the_folders_inside_count_too(tmp_path: Path, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = create_run(tmp_path, "r-222222", {"run_id": "r-222222", "nnodes": 1, "kind": "local", "created": 1.0})
    (tmp_path / folder).chmod(0o770)
    with pytest.raises(StoreError, match="may be written by others"):
        reconcile(tmp_path, run)
    if folder == "runs/r-222222":  # the others are looked after all the same
        supervise(tmp_path)
        assert "runs/r-222222 may be written by others (mode 0770)" in capsys.readouterr().err
    assert not (run.path / "verdict.json").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_anothers_state_folder_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_run(tmp_path, "r-222222", {"run_id": "r-222222", "nnodes": 1, "kind": "local", "created": 1.0})
    os.chown(tmp_path, 54321, 54321)
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    before = children()
    attended_root()
    assert (children(), list(tmp_path.glob("supervisor.*"))) == (before, [])
    with pytest.raises(StoreError, match="belongs to user 54321"):
        start_supervisor(tmp_path)


def test_no_program_that_a_pointer_of_anothers_names_is_run(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    pointer = {"run_id": "r-222222", "host": "me@hpc", "orch": "/home/mallory/evil", "time": 1.0}
    (tmp_path / "elsewhere" / "r-222222.json").write_text(json.dumps(pointer))
    assert find_pointer(tmp_path, "r-222222") is not None
    tmp_path.chmod(0o777)
    assert find_pointer(tmp_path, "r-222222") is None


def test_passes_over_a_large_run_leave_time_for_what_its_nodes_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is news all the time, and a pass over many nodes takes long."""
    passes: list[tuple[float, float]] = []

    class Slow:
        why_unable = ""

        def __init__(self, *_: object) -> None: ...

        def record(self) -> SimpleNamespace:
            return SimpleNamespace(kind="ssh", point=None)

        def run_once(self) -> bool | None:
            begun = time.monotonic()
            time.sleep(0.05)
            passes.append((begun, time.monotonic()))
            return True if len(passes) == 3 else None

    monkeypatch.setattr(supervisor, "Reconciler", Slow)
    monkeypatch.setattr(supervisor, "backend_for", lambda _: SimpleNamespace(wait=lambda *_: None))
    run = create_run(tmp_path, "r-222222", {"run_id": "r-222222", "nnodes": 1, "kind": "ssh", "created": 1.0})
    supervisor._look_after(tmp_path, run)
    for (begun, ended), (following, _) in pairwise(passes):
        assert following - ended >= min(supervisor.LONGEST_REST, ended - begun) * 0.9


def test_an_error_that_nobody_expected_is_tried_again_after_longer_and_longer_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended its thread at once, which was begun again at once: the log grew by megabytes a minute."""
    run, pauses, slept = RunDir(tmp_path / "runs/r-1"), dict[str, float](), list[float]()
    run.path.mkdir(parents=True)
    monkeypatch.setattr(supervisor.time, "sleep", slept.append)

    def fail() -> None:
        raise RecursionError("too deep")

    for _ in range(8):
        supervisor._work(run, fail, threading.Event(), pauses)
    assert slept == [1, 2, 4, 8, 15, 15, 15, 15]
    assert capsys.readouterr().err == "r-1: RecursionError: too deep\n" * 8
    supervisor._work(run, lambda: None, threading.Event(), pauses)
    assert pauses == {}

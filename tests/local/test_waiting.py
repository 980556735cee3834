"""Runs that are started after others: by the supervisor, in the environment of their submit, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.node.system.processes import send_signal, wait_gone
from orchestrator.runs.dependencies import is_queued
from orchestrator.runs.store import RunDir
from tests.patience import PATIENCE

from .conftest import REPO, Orch
from .test_results import supervisor_of

CRASH = REPO / "tests/soak/crash.py"


def gated(project: Callable[..., Path], code: int = 0) -> tuple[Path, Path]:
    """A job that ends when a file is there, and that file."""
    folder = project(
        gate_sh='until [ -e "$0.open" ]; do sleep 0.05; done; exit $1\n',
        first_yaml=f"command: [bash, gate.sh, '{code}']\nenv: {{GATE: here}}\ncode: {{dir: code}}\n",
        next_yaml='command: [bash, -c, "echo $COLOUR-$SECRET; env"]\nsecrets: [SECRET]\ncode: {dir: code}\n',
    )
    (folder / "code").mkdir()
    gate = folder / "open"
    (folder / "code/gate.sh").write_text(f"until [ -e {gate} ]; do sleep 0.05; done; exit $1\n")
    return folder, gate


def submit_next(orch: Orch, folder: Path, after: str) -> RunDir:
    given = {"COLOUR": "green", "SECRET": "hush"}
    return orch.submit(str(folder / "next.yaml"), "-p", "local", "--after", after, **given)


def test_a_run_waits_for_the_success_of_another(orch: Orch, project: Callable[..., Path]) -> None:
    folder, gate = gated(project)
    first = orch.submit(str(folder / "first.yaml"), "-p", "local")
    second = submit_next(orch, folder, first.run_id[:-1])
    third = submit_next(orch, folder, f"{second.run_id}:any")
    state = orch("status", second.run_id, "--json").json
    assert (state["state"], state["detail"]) == ("pending", f"waits for {first.run_id} to succeed")
    assert f"waits for {second.run_id} to end" in orch("status").out
    assert (second.path / "held.json").stat().st_mode & 0o777 == 0o600
    gate.touch()
    assert orch("wait", third.run_id).code == 0
    assert orch("status", second.run_id, "--json").json["state"] == "succeeded"
    log = (second.node(0) / "attempt_0/rank_0.log").read_text()
    assert log.startswith("green-hush\n")  # the environment of its submit
    assert not is_queued(second)
    assert len(orch.events(second, "agent_started")) == 1
    assert orch.events(second, "agent_started")[0]["time"] >= orch.events(first, "gang_ended")[0]["time"]


def test_a_run_whose_predecessor_fails_is_cancelled_and_says_why(orch: Orch, project: Callable[..., Path]) -> None:
    folder, gate = gated(project, code=3)
    first = orch.submit(str(folder / "first.yaml"), "-p", "local")
    second = submit_next(orch, folder, f"{first.run_id}:ok")
    third = submit_next(orch, folder, second.run_id)  # which will not have succeeded either
    gate.touch()
    assert orch("wait", third.run_id).code == 103
    assert f"{first.run_id}, after which it was to start, failed" in orch("why", second.run_id).out
    assert f"{second.run_id}, after which it was to start, was cancelled" in orch("why", third.run_id).out
    assert not orch.events(second, "agent_started")
    late = orch("submit", str(folder / "next.yaml"), "-p", "local", "--after", first.run_id, SECRET="-")  # noqa: S106
    assert late.code == 2
    assert f"to start the run however the other ended: --after {first.run_id}:any" in late.err
    at_once = submit_next(orch, folder, f"{first.run_id}:any")
    assert orch("wait", at_once.run_id).code == 0


def test_a_waiting_run_can_be_cancelled(orch: Orch, project: Callable[..., Path]) -> None:
    folder, _ = gated(project)
    first = orch.submit(str(folder / "first.yaml"), "-p", "local")
    second = submit_next(orch, folder, first.run_id)
    assert orch("cancel", second.run_id).code == 0
    assert "it was cancelled before it was started" in orch("why", second.run_id).out
    assert not is_queued(second)
    assert orch("cancel", first.run_id).code == 0


def test_a_supervisor_that_is_killed_forgets_nobody(orch: Orch, project: Callable[..., Path]) -> None:
    folder, gate = gated(project)
    first = orch.submit(str(folder / "first.yaml"), "-p", "local")
    second = submit_next(orch, folder, first.run_id)
    killed = supervisor_of(orch)
    send_signal(killed, signal.SIGKILL)
    assert wait_gone([killed], PATIENCE) == []
    gate.touch()
    assert orch("status", COLOUR="red").code == 0  # another supervisor, from a shell with other variables
    assert orch("wait", second.run_id).code == 0
    assert (second.node(0) / "attempt_0/rank_0.log").read_text().startswith("green-hush\n")


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_start_that_is_killed_is_seen_through_and_not_done_twice(
    orch: Orch, project: Callable[..., Path], tmp_path: Path
) -> None:
    """Killed before its intent, between agent and handle, and before it is off the list; SOAK=1: before every act."""
    folder, gate = gated(project)
    first = orch.submit(str(folder / "first.yaml"), "-p", "local")
    stops = range(1, 28) if os.environ.get("SOAK") else (8, 20, 26)
    runs = [submit_next(orch, folder, f"{first.run_id}:any") for _ in stops]
    said = [_kill_start(orch, run, tmp_path / "acts", stop) for run, stop in zip(runs, stops, strict=True)]
    assert all(each.startswith("killed before act") for each in said[:3])
    gate.touch()
    for run in runs:
        assert orch("wait", run.run_id).code == 0, orch("why", run.run_id).out
        assert len(orch.events(run, "agent_started")) == 1


def _kill_start(orch: Orch, run: RunDir, log: Path, stop: int) -> str:
    """Where a start of the run was killed."""
    argv = [sys.executable, str(CRASH), str(log), str(stop), "start", str(run.path)]
    done = subprocess.run(argv, env=orch.environment(), check=False, timeout=PATIENCE)
    assert done.returncode in (-signal.SIGKILL, 0)
    return log.read_text()

"""A supervisor that was frozen (SIGSTOP) in the middle of a start, while another machine took the run."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from orchestrator.errors import BackendError
from orchestrator.runs import claims
from orchestrator.runs.dependencies import VALUES_FOR_START
from orchestrator.runs.store import RunDir, create_run
from orchestrator.supervisor import heartbeat
from orchestrator.supervisor.heartbeat import Heartbeat
from tests.patience import PATIENCE
from tests.unit.backends.slurm.test_script import launch

# One machine's supervisor, as far as it starts a run: python -c PROGRAM ROOT HOST MOMENT. It stops itself at the
# MOMENT-th of its acts (files that it opens, renames or removes, programs that it runs).
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from orchestrator.runs import claims
from orchestrator.runs.store import RunDir
from orchestrator.supervisor import heartbeat, queue, starting
from orchestrator.transport.machine import Machine

root, host, moment, acts = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), 0
claims.here = heartbeat.here = lambda: host
claims.CLAIM_SECONDS, starting.SHOWS_ITSELF_SECONDS = 0.9, 0.3
beat = heartbeat.Heartbeat(root, lambda: os._exit(9), claims.CLAIM_SECONDS)
Machine.check = staticmethod(beat.check)
run = RunDir(root / "runs" / "j-abc234")
while not claims.may_take(run, claims.claim_of(run)):
    time.sleep(0.02)  # a heartbeat that stops sends no event
assert claims.take(run, claims.claim_of(run))

def count(event, values):
    global acts
    if event == "subprocess.Popen" or event in ("open", "os.rename", "os.remove") and str(root) in str(values[0]):
        acts += 1
        if acts == moment:
            os.kill(os.getpid(), signal.SIGSTOP)

sys.addaudithook(count)
queue.start_here(run)
"""
PROGRAMS = {
    "sbatch": "echo j-abc234 >>{root}/jobs; echo 17",
    "squeue": "if [ -e {root}/jobs ]; then echo '17|RUNNING|None|N/A|n[1-3]|j-abc234'; fi",
    "scontrol": "exit 1", "sacct": "exit 1", "scancel": "exit 1", "srun": "exit 1",
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A queued run of a Slurm that writes down each job."""
    (tmp_path / "bin").mkdir()
    for name, line in PROGRAMS.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{line.format(root=tmp_path)}\n")
        path.chmod(0o755)
    run = create_run(tmp_path, "j-abc234", {"nnodes": 3, "kind": "slurm", "created": 1.0, "submitter": {"host": "a"}})
    run.write("plan.json", launch(str(run.path), python=sys.executable).to_json())
    run.write(VALUES_FOR_START, {"secrets": {}}, private=True)
    return run


def machine(run: RunDir, host: str, moment: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PATH": f"{run.root}/bin:/usr/bin:/bin", "ORCH_HOME": str(run.root)}
    argv = [sys.executable, "-c", PROGRAM, str(run.root), host, str(moment)]
    return subprocess.Popen(argv, env=environment)


SEED, MOMENTS = int(os.environ.get("SOAK_SEED", "1")), 30 if os.environ.get("SOAK") else 2


@pytest.mark.parametrize("share", [random.Random(SEED + n).random() for n in range(MOMENTS)])
def test_a_run_is_submitted_once_whenever_its_supervisor_was_frozen(run: RunDir, share: float, tmp_path: Path) -> None:
    frozen = machine(run, "a", 1 + int(share * 60))
    _, status = os.waitpid(frozen.pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        other = machine(run, "b", 0)
        while claims.claim_of(run).host != "b":
            assert other.poll() is None
        os.kill(frozen.pid, signal.SIGCONT)
        _, status = os.waitpid(frozen.pid, 0)
        assert other.wait(PATIENCE) == 0
    frozen.returncode = status
    assert (tmp_path / "jobs").read_text() == "j-abc234\n"
    assert not (run.path / VALUES_FOR_START).exists()


@pytest.mark.parametrize(("error", "goes_on"), [(errno.ENOSPC, True), (errno.ESTALE, False)])
def test_without_a_beat_a_supervisor_goes_on_only_if_no_machine_can_take_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, goes_on: bool
) -> None:
    tried = threading.Event()

    def broken(*_: object, **__: object) -> None:
        tried.set()
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(heartbeat, "write_json", broken)
    again = threading.Event()
    heart = Heartbeat(tmp_path, again.set, 0.6)
    try:
        assert tried.wait(PATIENCE)
        if not goes_on:
            assert again.wait(PATIENCE)
        else:
            since = heart.last
            while heart.last == since:
                assert not again.wait(0.01)
    finally:
        heart.ended.set()


def test_a_supervisor_that_was_stopped_for_too_long_sends_nothing_and_starts_again(tmp_path: Path) -> None:
    again: list[int] = []
    heart = Heartbeat(tmp_path, lambda: again.append(1) or heart.ended.set())
    heart.check()
    heart.last -= claims.CLAIM_SECONDS
    with pytest.raises(BackendError, match="this supervisor was stopped for too long, and does not act any more"):
        heart.check()
    heart.ended.wait(PATIENCE)
    assert again == [1]

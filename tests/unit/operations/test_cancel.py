"""What a cancel says of a run: that it has ended, had ended before, or has not yet."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.backends.base import NodeProof, Sight
from orchestrator.errors import BackendError
from orchestrator.node.system.processes import MARK, mark
from orchestrator.operations import runs
from orchestrator.outcome.verdict import Outcome, Verdict
from orchestrator.runs.start_lock import being_started
from orchestrator.runs.state import RunState, RunStatus
from orchestrator.runs.store import create_run
from tests.patience import PATIENCE


def test_a_run_whose_start_is_still_at_work_is_not_said_to_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "CANCEL_MARGIN", 0.0)
    record = {"name": "slow", "kind": "local", "nnodes": 1, "hosts": ["localhost"], "created": 1.0}
    run = create_run(tmp_path, "slow-111111", record)
    with being_started(run):
        done = runs.cancel(tmp_path, run, now=True)
    assert (done.state.is_final, done.had_ended, done.is_proven) == (False, False, False)
    said = "slow-111111 has been told to stop, and has not ended yet (stopping); wait for it: orch wait slow-111111"
    assert done.said == said
    away = [NodeProof(node, f"n{node}", 0, is_unreachable=True) for node in (1, 2)]
    assert "could not be told to stop, as none of its machines is in reach" in replace(done, proofs=tuple(away)).said
    assert replace(done, proofs=(*away, NodeProof(3, "n3", 0))).said == said
    run.write("verdict.json", {**Verdict(Outcome.CANCELLED).to_json(), "ended": 2.0})
    again = runs.cancel(tmp_path, run, now=True)
    assert (again.said, again.is_proven) == ("slow-111111 already finished (cancelled)", True)


def test_a_backend_that_refuses_a_cancel_does_not_keep_the_other_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def cancel(self, runs: object) -> None:
            raise BackendError("scancel does not answer", transient=True)

    class Obeying:
        def cancel(self, runs: object) -> None:
            pass

    ended = list[str]()
    monkeypatch.setattr(runs, "backend_for", lambda kind: Refusing() if kind == "slurm" else Obeying())
    monkeypatch.setattr(runs, "_ended", lambda root, run, *_, **__: ended.append(run.run_id))
    made = [
        create_run(tmp_path, f"{kind}-111111", {"name": kind, "kind": kind, "nnodes": 1}) for kind in ("slurm", "local")
    ]
    monkeypatch.setattr(runs, "state_of", lambda run: RunState(run.run_id, "", "", 0.0, RunStatus.RUNNING))
    with pytest.raises(BackendError, match="scancel does not answer"):
        runs.cancel_all(tmp_path, made, now=True)
    assert sorted(ended) == ["local-111111", "slurm-111111"]
    assert all(run.is_cancelled for run in made)


def test_a_run_whose_folder_the_program_has_deleted_leaves_no_process(tmp_path: Path) -> None:
    run = create_run(tmp_path, "gone-111111", {"name": "gone", "kind": "local", "nnodes": 1, "hosts": ["localhost"]})
    (run.path / "run.json").unlink()
    rank = subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: mark(run.run_id, 0)})
    done = runs.cancel(tmp_path, run, now=True)
    assert rank.wait(PATIENCE) == -signal.SIGKILL
    assert (done.said, [proof.survivors for proof in done.proofs]) == (
        "gone-111111 has lost its record; its processes on this machine were ended", [()]
    )  # fmt: skip


def test_a_run_of_which_nothing_is_left_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor sees a moment later that the killed agents are gone, and then writes the verdict."""

    class Cleaning:
        def look(self, _: object) -> Sight:
            return Sight()

        def clean_up(self, _: object) -> list[NodeProof]:
            return [NodeProof(0, "n1", 1)]

    run = create_run(tmp_path, "slow-111111", {"name": "slow", "kind": "ssh", "nnodes": 1, "hosts": ["n1"]})
    waits: list[float] = []

    def wait(_: object, timeout: float) -> None:
        waits.append(timeout)
        if len(waits) == 2:
            run.write("verdict.json", {**Verdict(Outcome.CANCELLED).to_json(), "ended": 2.0})

    monkeypatch.setattr(runs, "backend_for", lambda _: Cleaning())
    monkeypatch.setattr(runs, "reconcile", lambda *_: None)
    monkeypatch.setattr(runs, "wait", wait)
    done = runs._ended(tmp_path, run, None, now=True, is_begun=True)
    assert (done.state.is_final, done.is_proven) == (True, True)

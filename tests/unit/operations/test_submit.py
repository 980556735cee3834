"""A submit that is interrupted, or that the disk refuses, leaves nothing that starts later or looks alive."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

import orchestrator
from orchestrator.errors import StoreError
from orchestrator.operations.submission import submit, sweep
from orchestrator.prepare import record
from orchestrator.runs.dependencies import CANCELLED, VALUES_FOR_START, Wait, is_queued
from orchestrator.runs.outbox import SECRETS
from orchestrator.runs.run_id import point_id
from orchestrator.runs.start_lock import STARTING, being_started, is_being_started
from orchestrator.runs.store import RunDir, create_run, live_runs, newest_runs
from orchestrator.runs.sweeps import make_sweep, share
from orchestrator.supervisor import queue
from orchestrator.supervisor.queue import runnable
from orchestrator.supervisor.reconcile import reconcile
from orchestrator.supervisor.starting import enqueue
from tests.patience import PATIENCE

JOB = {"command": ["true"]}
SWEEP = "a-222222"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder; no supervisor is started, and the job's code is an empty folder."""
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path / "code")
    monkeypatch.setattr(submit, "start_supervisor", lambda *_, **__: None)
    return Path(os.environ["ORCH_HOME"])


def after_one_that_goes_on(root: Path) -> str:
    return create_run(root, "first-222222", {"kind": "local", "nnodes": 1, "created": 1.0}).run_id


def points(root: Path, count: int) -> tuple[Path, list[RunDir]]:
    folder = make_sweep(root, SWEEP, None, {"sweep": SWEEP, "points": [{}] * count})
    runs = [create_run(root, point_id(SWEEP, number), {"kind": "local", "nnodes": 1}) for number in range(count)]
    return folder, runs


def full_disk_at(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    link = Path.hardlink_to

    def refuse(self: Path, target: Path) -> None:
        if self == path:
            raise OSError(errno.ENOSPC, "No space left on device")
        link(self, target)

    monkeypatch.setattr(Path, "hardlink_to", refuse)


def test_one_that_is_interrupted_while_it_is_recorded_is_no_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(record, "keep_room_for_cancel", interrupt)
    with pytest.raises(KeyboardInterrupt):
        orchestrator.submit(JOB, "local")
    assert newest_runs(root) == live_runs(root) == []


def test_one_that_is_interrupted_once_it_is_queued_is_not_started_later(root: Path) -> None:
    queued, begun = (create_run(root, name, {"kind": "local", "nnodes": 1}) for name in ("a-222222", "b-222222"))
    enqueue(queued, {})
    asked = submit.cancelled_if_interrupted(root, {})
    asked.__enter__().extend([queued, begun])
    assert not asked.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    ((found, wait),) = runnable(root, [(queued, queued.record())], set())
    assert found == queued
    assert wait == Wait(CANCELLED, is_unsatisfiable=True)
    verdict = reconcile(root, begun)
    assert verdict is not None
    assert verdict.outcome == "cancelled"


def test_one_that_can_not_be_put_on_the_list_is_no_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, write = after_one_that_goes_on(root), RunDir.write

    def refuse(self: RunDir, name: str, values: dict[str, object], *, private: bool = False) -> None:
        if name == VALUES_FOR_START:
            raise StoreError("no space left on device")
        write(self, name, values, private=private)

    monkeypatch.setattr(RunDir, "write", refuse)
    with pytest.raises(StoreError, match="no space left"):
        orchestrator.submit(JOB, "local", after=f"{first}:any")
    assert [run.run_id for run in newest_runs(root)] == [first]


def test_of_a_sweep_that_can_not_be_put_on_the_list_nothing_stays(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, runs = points(root, 3)
    full_disk_at(monkeypatch, runs[2].path / VALUES_FOR_START)
    with pytest.raises(StoreError, match="No space left"):
        sweep._enqueue(root, folder, runs, {})
    assert newest_runs(root) == []


def test_the_points_of_a_sweep_are_held_by_one_lock_until_all_are_queued(root: Path) -> None:
    folder, runs = points(root, 3)
    with sweep._all_being_started(folder, runs):
        for run in runs:
            share(folder, run, (STARTING,))
        assert all(map(is_being_started, runs))
        waiter = threading.Thread(target=queue.drop, args=(runs[1], "no reason"))
        enqueue(runs[1], {})
        waiter.start()
        waiter.join(0.2)
        assert is_queued(runs[1])
    waiter.join(PATIENCE)
    assert not is_queued(runs[1])
    with being_started(runs[0]):
        assert [is_being_started(run) for run in runs] == [True, False, False]


def test_only_a_run_that_somebody_is_told_of_keeps_its_secrets_to_mask_them(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIN", "canary")
    first = after_one_that_goes_on(root)
    job = {**JOB, "secrets": ["PIN"]}
    quiet = orchestrator.submit(job, "local", after=f"{first}:any")
    told = orchestrator.submit({**job, "notify": [{"command": ["true"]}]}, "local", after=f"{first}:any")
    kept = [RunDir(root / "runs" / run.id).read(SECRETS) for run in (quiet, told)]
    assert kept == [None, {"PIN": "canary"}]

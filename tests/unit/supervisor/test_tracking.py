"""The supervisor's part in trackers: what keeps it alive, and what is damaged does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.runs.marks import TRACK, mark, marked
from orchestrator.runs.state import Ending, Outcome, Verdict
from orchestrator.runs.store import RunDir, create_run, remove_run
from orchestrator.supervisor.tracking import TrackerFeeder
from orchestrator.trackers import ledger

JOB = {"script": "x.py", "track": ["tensorboard", "mlflow"]}
ADDRESS = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}  # the port `discard`, where nobody listens


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = create_run(tmp_path, "a-bcdefg", {"name": "a", "created": 1.0, "job": JOB})
    ledger.watch(tmp_path, run, ledger.trackers_of(JOB), ADDRESS)
    return run


def pass_over(feeder: TrackerFeeder) -> None:
    feeder.poll()
    for telling in feeder.tellings.values():
        if telling.thread is not None:
            telling.thread.join()


def end(run: RunDir) -> None:
    run.write("verdict.json", Ending(Verdict(Outcome.SUCCEEDED), 2.0).to_json())


def test_a_tracker_out_of_reach_keeps_no_other_waiting_and_no_supervisor_for_ever(run: RunDir) -> None:
    feeder = TrackerFeeder(run.root)
    assert not feeder.has_work()
    end(run)
    assert feeder.has_work()
    pass_over(feeder)
    told = {each["name"]: each for each in ledger.tracked(run)}
    assert (told["tensorboard"]["done"], told["mlflow"]["done"]) == (True, False)
    assert "can't be reached" in told["mlflow"]["problem"]
    assert feeder.has_work()
    feeder.tellings[run.run_id, "mlflow"].last_success -= 601
    pass_over(feeder)
    assert not feeder.has_work()
    assert marked(run.root, TRACK) == [run]  # another supervisor tries again
    assert TrackerFeeder(run.root).has_work()


def test_when_all_was_told_nothing_hidden_stays(run: RunDir) -> None:
    feeder = TrackerFeeder(run.root)
    end(run)
    assert (run.path / ledger.HIDDEN).stat().st_mode & 0o777 == 0o600
    for name in ("tensorboard", "mlflow"):
        ledger.save_progress(run, name, ledger.Progress(is_done=True))
    pass_over(feeder)
    assert (marked(run.root, TRACK), (run.path / ledger.HIDDEN).exists(), feeder.has_work()) == ([], False, False)


@pytest.mark.parametrize("name", ["run.json", "verdict.json"])
def test_a_damaged_record_keeps_no_supervisor(run: RunDir, name: str) -> None:
    feeder = TrackerFeeder(run.root)
    end(run)
    (run.path / name).write_text("{")
    pass_over(feeder)
    assert not feeder.has_work()


def test_a_run_that_was_removed_is_forgotten(run: RunDir) -> None:
    remove_run(run.root, run)
    feeder = TrackerFeeder(run.root)
    pass_over(feeder)
    assert not (run.root / TRACK / run.run_id).exists()
    mark(run.root, TRACK, run)
    assert marked(run.root, TRACK) == []

"""The outbox: what keeps the supervisor alive, and what is damaged does not."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from orchestrator.outcome.verdict import Outcome, Verdict
from orchestrator.runs import outbox
from orchestrator.runs.notifications import delivered
from orchestrator.runs.state import Ending
from orchestrator.runs.store import RunDir, create_run, remove_run
from orchestrator.supervisor.outbox import Outbox
from orchestrator.trackers import progress

JOB = {"script": "x.py", "track": ["tensorboard", "mlflow"]}
ADDRESS = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}  # the port `discard`, where nobody listens


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = create_run(tmp_path, "a-bcdefg", {"name": "a", "created": 1.0, "job": JOB})
    outbox.enter(tmp_path, run, ADDRESS)
    return run


def outbox_of(run: RunDir) -> Outbox:
    return Outbox(run.root, lambda: None)


def pass_over(box: Outbox) -> None:
    box.poll()
    for delivery in [each for of_run in box.deliveries.values() for each in of_run.values()]:
        if delivery.thread is not None:
            delivery.thread.join()


def end(run: RunDir) -> None:
    run.write("verdict.json", Ending(Verdict(Outcome.SUCCEEDED), 2.0).to_json())


def test_a_tracker_out_of_reach_keeps_no_other_waiting_and_no_supervisor_for_ever(run: RunDir) -> None:
    box = outbox_of(run)
    assert not box.has_work()
    end(run)
    assert box.has_work()
    pass_over(box)
    told = {each["name"]: each for each in progress.tracked(run)}
    assert (told["tensorboard"]["done"], told["mlflow"]["done"]) == (True, False)
    assert "can't be reached" in told["mlflow"]["problem"]
    assert box.has_work()
    box.deliveries[run.run_id]["mlflow"].last_success -= 601
    pass_over(box)
    assert not box.has_work()
    assert outbox.entered(run.root) == [run]  # another supervisor tries again
    assert outbox_of(run).has_work()


def test_a_receiver_that_fails_is_tried_less_and_less_often(run: RunDir) -> None:
    box, delays = outbox_of(run), list[float]()
    for _ in range(5):
        pass_over(box)
        failing, working = (box.deliveries[run.run_id][name] for name in ("mlflow", "tensorboard"))
        delays.append(failing.delay)
        assert working.delay == 1
        failing.next_try = 0
    assert delays == [2, 4, 8, 10, 10]


def test_when_all_was_told_nothing_hidden_stays(run: RunDir) -> None:
    box = outbox_of(run)
    end(run)
    assert (run.path / outbox.SECRETS).stat().st_mode & 0o777 == 0o600
    for name in ("tensorboard", "mlflow"):
        progress.save_progress(run, name, progress.Progress(is_done=True))
    pass_over(box)
    assert (outbox.entered(run.root), (run.path / outbox.SECRETS).exists(), box.has_work()) == ([], False, False)


def test_secrets_are_kept_as_long_as_one_receiver_lacks_news(tmp_path: Path) -> None:
    job = {**JOB, "notify": [{"on": ["succeeded"], "command": ["true"]}]}
    run = create_run(tmp_path, "a-bcdefg", {"name": "a", "created": 1.0, "job": job})
    outbox.enter(tmp_path, run, ADDRESS)
    end(run)
    box = outbox_of(run)
    pass_over(box)
    assert [each["state"] for each in delivered(run)] == ["sent"]
    assert outbox.secrets_of(run) == ADDRESS
    progress.save_progress(run, "mlflow", progress.Progress(is_done=True))
    pass_over(box)
    assert (outbox.entered(tmp_path), (run.path / outbox.SECRETS).exists(), box.deliveries) == ([], False, {})


def test_a_notification_that_can_not_be_recorded_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {"script": "x.py", "notify": [{"on": ["succeeded"], "command": ["true"]}]}
    run = create_run(tmp_path, "a-bcdefg", {"name": "a", "created": 1.0, "job": job})
    outbox.enter(tmp_path, run, {})
    end(run)
    box, woken = outbox_of(run), []
    box.wake = lambda: woken.append(len(delivered(run)))
    with monkeypatch.context() as full:
        full.setattr(outbox, "write_json", refuse)
        pass_over(box)
    assert "notifications got no news" in capsys.readouterr().err
    assert (delivered(run), box.has_work()) == ([], True)
    box.deliveries[run.run_id]["notifications"].next_try = 0
    pass_over(box)
    pass_over(box)
    assert [(each["state"], each["sends"]) for each in delivered(run)] == [("sent", 1)]
    assert (box.has_work(), woken) == (False, [0, 1, 1])


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("name", ["run.json", "verdict.json"])
def test_a_damaged_record_keeps_no_supervisor(run: RunDir, name: str) -> None:
    box = outbox_of(run)
    end(run)
    (run.path / name).write_text("{")
    pass_over(box)
    assert not box.has_work()


def test_a_run_that_was_removed_is_forgotten(run: RunDir) -> None:
    remove_run(run.root, run)
    box = outbox_of(run)
    pass_over(box)
    assert not (run.root / outbox.OUTBOX / run.run_id).exists()
    (run.root / outbox.OUTBOX / run.run_id).touch()
    assert outbox.entered(run.root) == []

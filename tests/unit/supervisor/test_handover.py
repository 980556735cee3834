"""A run that its supervisor starts for the submit: what that is told, and either of the two that is gone."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import BackendError, OrchError, PlacesTakenError, SpecError, StoreError, UsageError
from orchestrator.runs.dependencies import VALUES_FOR_START, is_queued
from orchestrator.runs.start_lock import being_started
from orchestrator.runs.store import RunDir, create_run
from orchestrator.supervisor import handover, starting
from orchestrator.supervisor.handover import Handover
from tests.unit.specs.test_plan import planned
from tests.unit.supervisor.test_supervisor import children


class Refusing:
    """A backend that refuses every run, and keeps what it was asked for."""

    def __init__(self, error: OrchError | None = None) -> None:
        self.error = error
        self.asked: tuple[Any, ...] = ()

    def submit(self, *asked: object) -> None:
        self.asked = asked
        if self.error is not None:
            raise self.error


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create_run(tmp_path, "r-222222", {"kind": "ssh", "nnodes": 3})


def answered(monkeypatch: pytest.MonkeyPatch, backend: Refusing, run: RunDir) -> dict[str, Any]:
    """What the submit reads."""
    monkeypatch.setattr(starting, "backend_for", lambda _: backend)
    asked = {"plan": planned().to_json(), "secrets": {"TOKEN": "t"}, "folder": "/home/of/the/submit"}
    answer = handover._start(run, json.loads(json.dumps(asked)))
    return dict(json.loads(json.dumps(answer)))


def test_the_backend_is_handed_what_the_submit_would_hand_it(monkeypatch: pytest.MonkeyPatch, run: RunDir) -> None:
    backend = Refusing()
    handover._raise_if_refused(answered(monkeypatch, backend, run))
    (plan,), (tasks,), (its,) = backend.asked
    assert (plan, its) == (planned(), run)
    assert {task.secrets["TOKEN"] for task in tasks} == {"t"}
    assert len({task.credentials for task in tasks}) == 1
    assert "PRIVATE KEY" in tasks[0].credentials
    assert [task.node_rank for task in tasks] == list(range(plan.nnodes))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BackendError("n1: no", "try again", transient=True), BackendError),
        (BackendError("n1: no"), BackendError),
        (StoreError("/x can't be written"), StoreError),
        (UsageError("not like this"), UsageError),
        (SpecError("job.yaml:1:1", "wrong", "right"), UsageError),
    ],
    ids=lambda each: getattr(each, "message", ""),
)
def test_a_refusal_is_raised_in_the_submit_as_it_was_there(
    monkeypatch: pytest.MonkeyPatch, run: RunDir, error: OrchError, kind: type[OrchError]
) -> None:
    with pytest.raises(kind) as raised:
        handover._raise_if_refused(answered(monkeypatch, Refusing(error), run))
    told = raised.value
    assert type(told) is kind
    assert (told.message, told.hint, told.transient) == (error.message, error.hint, error.transient)
    assert told.exit_code == error.exit_code


def test_a_run_whose_places_are_taken_is_queued_by_whoever_starts_it(
    monkeypatch: pytest.MonkeyPatch, run: RunDir
) -> None:
    assert answered(monkeypatch, Refusing(PlacesTakenError("taken", "wait")), run) == {"started": True}
    assert is_queued(run)
    held = run.read(VALUES_FOR_START)
    assert held is not None
    assert held["secrets"] == {"TOKEN": "t"}
    assert held["folder"] == "/home/of/the/submit"


@pytest.mark.parametrize(
    ("sent", "received"), [(b'{"folder": "/x"}\n', {"folder": "/x"}), (b'{"folder": ', None), (b"", None)]
)
def test_a_request_ends_with_its_line_and_is_none_if_the_submit_ends_before(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, received: object
) -> None:
    monkeypatch.setattr(handover, "CHUNK", 4)
    here, submit = socket.socketpair()
    with here, submit:
        submit.sendall(sent)
        if received is None:
            submit.close()
        here.setblocking(False)  # a request that is complete is not waited for
        assert handover._received(here) == (received,)


def test_one_that_is_asked_for_nothing_ends_without_a_word(tmp_path: Path) -> None:
    before = children()
    with Handover(tmp_path, "ssh", ()):
        (started,) = children() - before
    _, status = os.waitpid(started, 0)
    assert (status, (tmp_path / "supervisor.log").read_text()) == (0, "")


def test_one_that_is_killed_is_named_with_its_log(tmp_path: Path, run: RunDir) -> None:
    before = children()
    with Handover(tmp_path, "ssh", ()) as supervisor, being_started(run) as lock:
        (started,) = children() - before
        os.kill(started, signal.SIGKILL)
        os.waitpid(started, 0)
        with pytest.raises(BackendError, match="ended before it had started the run") as raised:
            supervisor.start(run, planned(), {}, lock, lambda _: None)
    assert raised.value.transient
    assert str(tmp_path / "supervisor.log") in raised.value.hint


def test_a_starter_that_was_stopped_continues(tmp_path: Path, run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "QUIET_SECONDS", 0.05)
    before = children()
    with Handover(tmp_path, "ssh", ()) as supervisor, being_started(run) as lock:
        (started,) = children() - before
        os.kill(started, signal.SIGSTOP)
        os.waitpid(started, os.WUNTRACED)
        with pytest.raises(OrchError):  # it reads the request, of a run that has no record, and ends
            supervisor.start(RunDir(tmp_path / "runs" / "r-333333"), planned(), {}, lock, lambda _: None)
    os.waitpid(started, 0)

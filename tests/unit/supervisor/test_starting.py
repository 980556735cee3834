"""A start that was interrupted: whether it had started everything, and what a second start may remove."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.backends.base import Sight
from orchestrator.errors import BackendError
from orchestrator.outcome.scheduler import SchedulerStatus
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir, create_run
from orchestrator.supervisor import starting
from tests.unit.specs.test_plan import planned


class StartsOnce:
    """A backend whose agents can't be started twice."""

    relaunches = False

    def __init__(self, sight: Sight) -> None:
        self.sight = sight
        self.done: list[str] = []

    def look(self, _: RunDir) -> Sight:
        return self.sight

    def clean_up(self, _: RunDir) -> None:
        self.done.append("clean_up")

    def submit(self, *_: object) -> None:
        self.done.append("submit")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Return a run whose start was interrupted long ago."""
    run = create_run(tmp_path, "r-222222", {"nnodes": 2})
    run.write("handle.json", {"state": HandleStatus.INTENT.value})
    os.utime(run.path / "handle.json", (0, 0))
    return run


@pytest.mark.parametrize(
    ("sight", "done"),
    [
        (Sight({0: True, 1: True}), []),
        (Sight({0: True}), ["clean_up", "submit"]),
        (Sight({0: True, 1: True}, scheduler=SchedulerStatus("active")), []),
        (Sight(scheduler=SchedulerStatus("none")), ["clean_up", "submit"]),
    ],
)
def test_an_interrupted_start_is_repeated_unless_all_agents_are_there(
    monkeypatch: pytest.MonkeyPatch, run: RunDir, sight: Sight, done: list[str]
) -> None:
    backend = StartsOnce(sight)
    monkeypatch.setattr(starting, "backend_for", lambda _: backend)
    starting.start([run], [planned()], {})
    assert backend.done == done
    assert [event.kind for event in run.events()] == ["submitted"]


def test_an_interrupted_start_is_not_repeated_while_the_scheduler_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, run: RunDir
) -> None:
    backend = StartsOnce(Sight(scheduler=SchedulerStatus("unknown", "squeue does not answer")))
    monkeypatch.setattr(starting, "backend_for", lambda _: backend)
    with pytest.raises(BackendError, match="r-222222: squeue does not answer") as raised:
        starting.start([run], [planned()], {})
    assert raised.value.transient
    assert (backend.done, run.events()) == ([], ())

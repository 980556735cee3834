"""A start that was interrupted is completed, or is made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.base import Sight
from orchestrator.runs.store import RunDir, create_run
from orchestrator.supervisor import starting
from tests.unit.specs.test_plan import planned


class OneLook:
    """A backend that can be asked once which agents live, and that records what it is asked to do."""

    relaunches = False

    def __init__(self, alive: int) -> None:
        self.sights = [Sight(alive=dict.fromkeys(range(alive), True))]
        self.done: list[str] = []

    def look(self, _: RunDir) -> Sight:
        return self.sights.pop()

    def clean_up(self, _: RunDir) -> None:
        self.done.append("clean up")

    def submit(self, *_: Any) -> None:
        self.done.append("submit")


@pytest.mark.parametrize(
    ("state", "alive", "seconds", "done"),
    [
        ("submitted", 0, 10.0, []),
        ("intent", 2, 600.0, []),
        ("intent", 1, 0.0, ["clean up", "submit"]),
    ],
)
def test_agents_that_an_interrupted_start_has_started_are_kept_only_if_none_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, alive: int, seconds: float, done: list[str]
) -> None:
    run, machine = create_run(tmp_path, "r-1", {"run_id": "r-1", "nnodes": 2}), OneLook(alive)
    run.write("handle.json", {"state": state})
    monkeypatch.setattr(starting, "backend", lambda _: machine)
    monkeypatch.setattr(starting, "SHOWS_ITSELF_SECONDS", seconds)
    starting.start(run, planned(), {}, credentials="")
    assert machine.done == done
    assert [event.kind for event in run.events()] == ["submitted"]

"""What a start has sent is removed by the start itself, and by whoever ends the run where that was torn away."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.backends.agents.over_ssh import AgentsOverSsh
from orchestrator.errors import BackendError, StoreError
from orchestrator.runs.start_lock import SENDING
from orchestrator.runs.store import RunDir, create_run


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create_run(tmp_path, "r-234567", {"kind": "ssh", "nnodes": 1})


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[RunDir]:
    """The runs of which what was sent has been removed."""
    found: list[RunDir] = []
    monkeypatch.setattr(AgentsOverSsh, "_remove_sent", lambda _, run: found.append(run))
    return found


def test_a_cancel_beside_a_start_leaves_what_is_being_sent(run: RunDir, removed: list[RunDir]) -> None:
    with AgentsOverSsh()._sending(run):
        AgentsOverSsh()._remove_what_a_killed_start_has_sent(run)
        assert (run.path / SENDING).exists()
    AgentsOverSsh()._remove_what_a_killed_start_has_sent(run)
    assert removed == []


def test_what_a_start_has_sent_that_was_torn_away_is_removed_once(run: RunDir, removed: list[RunDir]) -> None:
    with pytest.raises(KeyboardInterrupt), AgentsOverSsh()._sending(run):
        raise KeyboardInterrupt
    for _ in range(2):
        AgentsOverSsh()._remove_what_a_killed_start_has_sent(run)
    assert removed == [run]


def test_a_start_that_was_refused_has_removed_it_itself(run: RunDir, removed: list[RunDir]) -> None:
    with pytest.raises(BackendError), AgentsOverSsh()._sending(run):
        raise BackendError("n1: no")
    AgentsOverSsh()._remove_what_a_killed_start_has_sent(run)
    assert removed == [run]


def test_a_mark_that_cannot_be_written_is_a_sentence(run: RunDir) -> None:
    (run.path / SENDING).symlink_to(run.path / "nowhere" / "else")
    with pytest.raises(StoreError, match="can't be written"), AgentsOverSsh()._sending(run):
        pytest.fail("it was begun without a mark")

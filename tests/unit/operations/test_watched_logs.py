"""A log that somebody looks at is brought while it is asked for, by one thread, and not for longer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import BackendError
from orchestrator.operations import watched_logs
from orchestrator.operations.watched_logs import MOST, WatchedLogs
from orchestrator.runs.files.logs import Selection
from orchestrator.runs.store import RunDir

BRIEFLY, LONG = 0.05, 60.0


class Bringing:
    """Stands in for the backends: says what is begun, and what has ended."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Semaphore(0), threading.Semaphore(0)
        self.ranks: list[int | None] = []
        self.problem: Exception | None = None

    @contextlib.contextmanager
    def __call__(self, _: RunDir, selection: Selection) -> Iterator[None]:
        self.ranks.append(selection.rank)
        self.begun.release()
        try:
            if self.problem is not None:
                raise self.problem
            yield
        finally:
            self.ended.release()


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


@pytest.fixture
def bringing(monkeypatch: pytest.MonkeyPatch) -> Bringing:
    made = Bringing()
    monkeypatch.setattr(watched_logs, "bringing_logs", made)
    return made


def end(run: RunDir, watched: WatchedLogs, bringing: Bringing) -> None:
    """End the run, and wait until its logs are not brought any more."""
    run.write("verdict.json", {})
    for asked in list(watched._asked.values()):
        asked.set()
        assert bringing.ended.acquire(timeout=LONG)


def test_a_log_is_brought_once_however_often_it_is_asked_for_until_its_run_has_ended(
    run: RunDir, bringing: Bringing
) -> None:
    watched = WatchedLogs(LONG)
    for _ in range(3):
        watched.ask(run, 3)
    assert bringing.begun.acquire(timeout=LONG)
    end(run, watched, bringing)
    watched.ask(run, 3)
    assert bringing.ranks == [3]


def test_it_is_not_brought_for_ever(run: RunDir, bringing: Bringing) -> None:
    WatchedLogs(BRIEFLY).ask(run, 3)
    assert bringing.ended.acquire(timeout=LONG)


def test_rank_0_comes_anyway_and_there_is_a_most(run: RunDir, bringing: Bringing) -> None:
    watched = WatchedLogs(LONG)
    for rank in range(MOST + 5):
        watched.ask(run, rank)
    for _ in range(MOST):
        assert bringing.begun.acquire(timeout=LONG)
    assert sorted(rank or 0 for rank in bringing.ranks) == [*range(1, MOST + 1)]
    end(run, watched, bringing)


def test_after_a_failure_it_is_tried_again_when_it_is_asked_for(run: RunDir, bringing: Bringing) -> None:
    watched, bringing.problem = WatchedLogs(BRIEFLY), BackendError("n1: no route")
    watched.ask(run, 1)
    assert bringing.ended.acquire(timeout=LONG)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.name.endswith("(_bring)"):
            thread.join(LONG)
    bringing.problem = None
    watched.ask(run, 1)
    assert bringing.ended.acquire(timeout=LONG)
    assert bringing.ranks == [1, 1]

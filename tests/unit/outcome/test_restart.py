"""The restart policy as tables: who starts what again, how often, and when it has no point."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.outcome.restart import (
    WITHOUT_PROGRESS,
    Refusal,
    Restarter,
    budget_left,
    progress_of_starts,
    refusal,
    stalled,
    times_used,
)
from orchestrator.protocol.events import Event
from orchestrator.protocol.progress import Progress
from tests.events import event

RETRY = {"user_error": 0, "infra": 2, "preempted": None, "timeout": None}
LEADER, SUPERVISOR, SCHEDULER = Restarter.LEADER, Restarter.SUPERVISOR, Restarter.SCHEDULER
NOT_MENDED, SPENT, STUCK = Refusal.NOT_MENDED, Refusal.BUDGET_SPENT, Refusal.NO_PROGRESS


@pytest.mark.parametrize(
    ("by", "cause", "used", "without", "expected"),
    [
        (LEADER, "infra", 0, 0, None),
        (LEADER, "infra", 1, 2, None),
        (LEADER, "infra", 2, 0, SPENT),
        (LEADER, "user_error", 0, 0, SPENT),  # none is allowed, unless the job says so
        (LEADER, "no_retry", 0, 0, NOT_MENDED),
        (LEADER, "preempted", 0, 0, NOT_MENDED),  # whoever asked it to stop would ask again
        (LEADER, "timeout", 0, 0, NOT_MENDED),
        (LEADER, "infra", 0, 3, STUCK),
        (LEADER, "infra", 2, 3, SPENT),  # said before the other: the budget is the job's own word
        (SUPERVISOR, "infra", 1, 0, None),
        (SUPERVISOR, "preempted", 99, 0, None),
        (SUPERVISOR, "preempted", 99, 3, STUCK),
        (SUPERVISOR, "timeout", 0, 0, NOT_MENDED),
        (SUPERVISOR, "user_error", 0, 0, NOT_MENDED),
        (SUPERVISOR, "cancelled", 0, 0, NOT_MENDED),
        (SCHEDULER, "timeout", 7, 0, None),
        (SCHEDULER, "timeout", 0, 1, STUCK),  # the next one would have no more time
        (SCHEDULER, "preempted", 7, 0, None),
        (SCHEDULER, "infra", 2, 0, SPENT),
        (SCHEDULER, "user_error", 0, 0, NOT_MENDED),
        (SCHEDULER, "", 0, 0, NOT_MENDED),
    ],
)
def test_the_policy(by: Restarter, cause: str, used: int, without: int, expected: Refusal | None) -> None:
    assert refusal(by, cause, RETRY, used, without) is expected


def test_what_the_job_says_nothing_of_is_not_retried() -> None:
    assert refusal(LEADER, "infra", {}, 0) is SPENT
    assert refusal(LEADER, "infra", {"infra": None}, 1_000_000) is None


@pytest.mark.parametrize(
    ("begun_at", "step", "count"),
    [
        ([], 5, 0),
        ([None], None, 1),
        ([None], 5, 0),
        ([5], 5, 1),
        ([5], 6, 0),
        ([5], 4, 1),  # an older one is no progress
        ([5], None, 1),  # nor is a folder that can't be read
        ([None, 10, 10], None, 2),  # which does not undo what was gained before
        ([10, 20, 20], 20, 2),
        ([10, 20, 20], 30, 0),
        ([None, None, None], None, 3),
    ],
)
def test_starts_in_a_row_without_a_new_checkpoint(begun_at: list[int | None], step: int | None, count: int) -> None:
    assert stalled([at(begun) for begun in begun_at], at(step)) == count


def at(step: int | None) -> Progress:
    return Progress() if step is None else Progress(step)


def test_files_without_a_step_are_told_apart_by_their_time_and_any_step_counts_for_more() -> None:
    before, later = Progress(saved=1.5), Progress(saved=2.5)
    assert stalled([before], later) == 0
    assert stalled([before, before], before) == 2
    assert stalled([later], Progress(0)) == 0
    assert stalled([Progress(0)], later) == 1


@given(st.builds(Progress, st.integers(-1, 9), st.integers(-1, 9), st.floats(0, 1e10)))
def test_an_event_tells_all_of_it_that_counts(progress: Progress) -> None:
    told = Progress.from_json(json.loads(json.dumps(progress.to_event())))
    assert told == (progress if progress.step < 0 else Progress(progress.step))


def test_the_third_start_in_a_row_without_progress_is_the_last() -> None:
    begun_at = [Progress(7)]
    while refusal(SUPERVISOR, "preempted", RETRY, 0, stalled(begun_at, Progress(7))) is None:
        begun_at.append(Progress(7))
    assert len(begun_at) == WITHOUT_PROGRESS == 3


def test_all_who_restart_draw_on_one_budget() -> None:
    def begun(kind: str, cause: str, **values: Any) -> Event:
        return event(kind, cause=cause, start=1, attempt=1, reason="", **values)

    events = [
        begun("restart", "infra"), begun("starting_again", "infra", step=4), begun("gang_ended", "infra", outcome="-"),
        begun("starting_again", "preempted", step="?"), begun("restart", "user_error"),
    ]  # fmt: skip
    assert [times_used(events, cause) for cause in ("infra", "preempted", "user_error", "timeout")] == [2, 1, 1, 0]
    assert budget_left(RETRY, iter(events)) == {"user_error": 0, "infra": 0, "preempted": None, "timeout": None}
    assert progress_of_starts(events) == [Progress(4), Progress()]

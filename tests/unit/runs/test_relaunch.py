"""Starts are pure: which events count, and whether a run's agents are started again."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.outcome.restart import (
    Relaunch,
    budget_left,
    last_attempt,
    newest_saved,
    newest_start,
    next_start,
    pending_start,
)
from orchestrator.protocol.events import Event, read_events
from orchestrator.protocol.progress import Progress
from orchestrator.runs.record import RunRecord
from orchestrator.runs.reducer import reduce
from orchestrator.runs.store import correct_clock_skew
from tests.events import event, typed

RETRY = {"user_error": 0, "infra": 2, "preempted": None, "timeout": None}
GO = event("go", 0, attempt=0, world_size=2)


def again(start: int, attempt: int, cause: str = "infra", step: int | None = None) -> Event:
    return event("starting_again", start=start, attempt=attempt, cause=cause, reason="lost", step=step)


def agent(node: int, start: int = 0, **values: Any) -> Event:
    return event("agent_started", node, start=start, host=f"n{node}", **values)


def test_before_a_second_start_every_event_counts() -> None:
    events = [event("submitted"), agent(0), GO, event("found_lost")]
    assert newest_start(events) == events


def test_a_decided_start_hides_what_the_one_before_it_left() -> None:
    events = [event("submitted"), event("found_lost"), again(1, 3), agent(0), GO, agent(1), agent(1, 1)]
    assert newest_start(events) == [event("submitted"), again(1, 3), agent(1, 1)]


def test_a_requeued_agent_alone_opens_a_start() -> None:
    ended = event("agent_ended", 0, outcome="preempted")
    assert newest_start([agent(0), ended, agent(0, 1), agent(1)]) == [agent(0, 1)]


def test_the_next_start_follows_the_last_attempt() -> None:
    events = [
        GO, event("restart", 0, attempt=1, cause="infra"), event("go", 0, attempt=1, world_size=2),
        event("attempt_failed", 0, attempt=0, step=40, cause="infra", culprit={"rank": 0}),
    ]  # fmt: skip
    assert last_attempt(events) == 1
    assert newest_saved(events) == Progress(40)
    assert next_start(RETRY, events, "infra", "node 2 was lost") == Relaunch(1, 2, "infra", "node 2 was lost", 40)
    assert budget_left(RETRY, events) == {"user_error": 0, "infra": 1, "preempted": None, "timeout": None}


@pytest.mark.parametrize(
    ("events", "cause"),
    [
        ([], "infra"),  # it never ran: nothing that another start would mend
        ([GO], "user_error"),
        ([GO], "timeout"),
        ([GO, event("cancel")], "infra"),
        ([GO, again(1, 1), again(2, 2)], "infra"),
        ([GO, again(1, 1), event("restart", attempt=2, cause="infra")], "infra"),
        ([GO, again(1, 1), event("submit_failed", reason="n2 did not come back")], "infra"),
    ],
)
def test_no_further_start(events: list[Event], cause: str) -> None:
    assert next_start(RETRY, events, cause, "why") is None


def test_a_run_that_never_began_is_started_again_only_where_a_node_was_lost() -> None:
    lost = event("lost_node", 0, lost=1)
    assert next_start(RETRY, [lost], "infra", "why") == Relaunch(1, 1, "infra", "why")
    assert next_start(RETRY, [], "infra", "why", lost=True) == Relaunch(1, 1, "infra", "why")
    assert next_start(RETRY, [event("submit_failed", reason="no")], "infra", "why", lost=True) is None


def ended(step: int) -> Event:
    return event("gang_ended", 0, attempt=3, outcome="preempted", cause="preempted", reason="", step=step)


def test_preemptions_have_no_budget_but_need_progress() -> None:
    three = [GO, *(again(number, number, "preempted", 10) for number in (1, 2, 3))]
    moved = [*three, ended(20)]
    assert isinstance(next_start(RETRY, moved, "preempted", "why"), Relaunch)
    stuck = [*three, ended(10)]
    assert (
        next_start(RETRY, stuck, "preempted", "why")
        == "3 starts in a row ended without a new checkpoint; the last: why"
    )


def test_a_start_on_fewer_nodes_says_so() -> None:
    record = RunRecord("r-1", nnodes=2, hosts=("n0", "n2"))
    said = event("going_on_without", start=1, hosts=["n1"], nodes=2, of=3)
    go = event("go", 0, attempt=1, world_size=2)
    events = [again(1, 1), said, agent(0, 1), go, agent(1, 1), agent(2)]
    running = reduce(record, events, {0: True, 1: True}, rank0_done=False)
    assert (running.detail, len(running.nodes)) == ("on 2 of 3 nodes, without n1", 2)
    end = event("gang_ended", 0, outcome="succeeded", cause="", reason="", attempt=1)
    words = [event("agent_ended", node, outcome="succeeded") for node in (0, 1)]
    verdict = reduce(record, [*events, end, *words], {}, rank0_done=True).verdict
    assert verdict is not None
    assert (verdict.outcome, verdict.reason) == ("succeeded", "on 2 of 3 nodes, without n1")


def test_the_reducer_waits_for_the_agents_of_a_decided_start() -> None:
    record = RunRecord("r-1", nnodes=2, hosts=("n0", "n1"))
    lost = event("gang_ended", 0, outcome="failed", cause="infra", reason="lost", attempt=0)
    before = [agent(0), GO, agent(1), lost, event("agent_ended", 0, outcome="failed")]
    assert reduce(record, before, {1: False}, rank0_done=False).state == "failed"
    between = reduce(record, [again(1, 1), *before], {}, rank0_done=False)
    assert (between.state, between.verdict, between.attempt, between.restarts) == ("restarting", None, 1, 1)
    assert pending_start([again(1, 1), *before]) == Relaunch(1, 1, "infra", "lost")
    after = reduce(record, [again(1, 1), *before, agent(0, 1)], {}, rank0_done=False)
    assert [node.state for node in after.nodes] == ["starting", "waiting"]


def corrected(*events: Event) -> list[float]:
    return [event.time for event in correct_clock_skew(events)]


def test_times_of_a_node_whose_clock_is_off_are_shown_as_this_machine_would_have_told_them() -> None:
    clock = {"kind": "clock", "of": 1, "start": 0, "ahead": 7200.0, "time": 100.0}
    events = [*typed([clock]), agent(0, time=101.0), agent(1, time=7301.0), event("reached_leader", 1, time=7302.5)]
    assert corrected(*events) == [100.0, 101.0, 101.0, 102.5]
    replaced = [*events, agent(1, start=1, time=120.0)]  # by a machine with another clock
    assert corrected(*replaced)[-1] == 120.0
    assert corrected(*events[1:]) == [101.0, 7301.0, 7302.5]
    assert corrected(*read_events([{**clock, "ahead": "?"}]), agent(1, time=None)) == [0.0]


def test_ranks_that_fail_after_the_runs_folder_was_removed_are_not_started_again() -> None:
    events = [GO, event("folder_lost", 0, of=0, host="n0", path="/r")]
    assert isinstance(next_start(RETRY, events[:1], "infra", "why"), Relaunch)
    assert next_start(RETRY, events, "infra", "why") is None
    assert isinstance(next_start(RETRY, events, "infra", "why", lost=True), Relaunch)

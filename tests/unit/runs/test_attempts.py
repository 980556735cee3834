"""The history of a run's attempts, and what a run that has lost machines does next: from its events alone."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.outcome.verdict import Unreachable
from orchestrator.protocol.events import Event
from orchestrator.runs.record import RunRecord
from orchestrator.runs.reducer import reduce
from orchestrator.runs.restarts.attempts import attempts_of
from orchestrator.runs.restarts.recovery import Newest, Reserves, recovery_of
from orchestrator.runs.state import AttemptSummary, Recovery
from tests import events as made

RECORD = RunRecord("r-1", nnodes=3, hosts=("n1", "n2", "n3"), job_document={"retry": {"infra": 1}})
LOSS = "node 2 (n3) was lost: no heartbeat for 10 s"
CULPRIT = {"rank": 1, "node": 0, "host": "n1", "code": None, "signal": "SIGKILL"}


def event(kind: str, time: float, node: int | None = 0, **values: Any) -> Event:
    return made.event(kind, node, time=time, **values)


def go(attempt: int, time: float, resume_from: str | None = None) -> Event:
    return event("go", time, attempt=attempt, world_size=3, resume_from=resume_from)


def relaunch(start: int, attempt: int, time: float, step: int | None = 300) -> Event:
    return event("starting_again", time, None, start=start, attempt=attempt, cause="infra", reason=LOSS, step=step)


CUT = [event("agent_started", 99.0, host="n1"), go(0, 100.0), event("lost_node", 120.0, lost=2, host="n3", reason="-")]
ENDED = [*CUT, event("gang_ended", 123.0, outcome="failed", cause="infra", reason=LOSS, attempt=0, step=300)]
DECIDED = [*ENDED, relaunch(1, 1, 130.0)]
REPLACED = [*DECIDED, event("replaced", 131.0, None, start=1, lost=2, host="n3", by="n4")]


@pytest.mark.parametrize(
    ("events", "attempts"),
    [
        ([], ()),
        (CUT, (AttemptSummary(0, 100.0),)),
        (DECIDED, (AttemptSummary(0, 100.0, 123.0, LOSS), AttemptSummary(1))),
        (REPLACED, (AttemptSummary(0, 100.0, 123.0, f"{LOSS}; n4 took the place of n3"), AttemptSummary(1))),
        ([go(0, 100.0), relaunch(1, 1, 130.0), go(1, 135.0, "step_00000300"),
          event("first_steps", 136.0, attempt=1, loaded=300),
          event("attempt_failed", 140.0, attempt=1, cause="infra", culprit=CULPRIT),
          event("restart", 141.0, attempt=2, cause="infra"), go(2, 142.0, "step_00000400"),
          event("gang_ended", 150.0, outcome="succeeded", cause="", reason="", attempt=2)],
         (AttemptSummary(0, 100.0, 130.0, LOSS),
          AttemptSummary(1, 135.0, 140.0, "rank 1 on node 0 (n1) ended with SIGKILL", "step_00000300", "step_00000300"),
          AttemptSummary(2, 142.0, 150.0, "succeeded", None, "step_00000400"))),
        ([relaunch(1, 0, 130.0), relaunch(2, 1, 140.0)], (AttemptSummary(0, None, 140.0, LOSS), AttemptSummary(1))),
    ],
)  # fmt: skip
def test_the_history_of_attempts(events: list[Event], attempts: tuple[AttemptSummary, ...]) -> None:
    assert attempts_of(events) == attempts


@pytest.mark.parametrize(
    ("first", "is_resumed"),
    [
        ({"loaded": 300}, True),  # the training library reports it
        ({"loaded": 0}, True),
        ({"steps": [301, 302], "offered_step": 300}, True),
        ({"steps": [310, 320], "offered_step": 300}, True),
        ({"steps": [301, 302]}, True),  # nothing tells the step of ckpt.pt
        ({"read": True, "offered_step": 300}, True),
        ({"saved": 400, "offered_step": 300}, True),
        ({"saved": 100, "offered_step": 300}, False),
        ({"saved": 400}, False),
        ({"steps": [1, 2], "offered_step": 300}, False),
        ({"steps": [0, 10]}, False),
        ({"steps": [10, 20], "offered_step": 5}, False),  # a program that reports every tenth step
        ({"steps": [500, 1000], "offered_step": 300}, False),
        ({"steps": [201, 202], "offered_step": 300}, False),  # it has loaded another one
        ({}, False),
        ({"steps": [301]}, False),
        ({"steps": "x", "loaded": None}, False),
    ],
)
def test_a_checkpoint_that_was_offered_counts_as_resumed_only_if_something_tells_so(
    first: dict[str, Any], is_resumed: bool
) -> None:
    said = [event("first_steps", 102.0, attempt=1, **first)] if first else []
    (attempt,) = attempts_of([go(1, 101.0, "code/ckpt.pt"), *said])
    assert (attempt.resumed_from, attempt.offered) == ("code/ckpt.pt" if is_resumed else None, "code/ckpt.pt")


def recovery(
    events: list[Event], has: Reserves, away: tuple[str, ...] = ("n3",), record: RunRecord = RECORD
) -> Recovery | None:
    state = reduce(record, events, {0: True, 1: True, 2: None}, rank0_done=False)
    nodes = [replace(node, unreachable=Unreachable(115.0) if node.host in away else None) for node in state.nodes]
    return recovery_of(record, events, replace(state, nodes=tuple(nodes)), has)


NONE = Reserves(("n1", "n2", "n3"), node_wait=60.0)
SPARE, TWO = replace(NONE, free=("n4", "n5")), replace(NONE, min_nodes=2)
WITHOUT = event("going_on_without", 131.0, None, start=1, hosts=["n3"], nodes=2, of=3)
WAITING = event("waiting_for_hosts", 131.0, None, start=1, hosts=["n3"], why=["n3: No route to host"])


@pytest.mark.parametrize(
    ("events", "has", "words"),
    [
        (CUT, SPARE, "restarting on n1, n2, spare n4 from the newest checkpoint, if its machines have one"),
        (ENDED, SPARE, "restarting on n1, n2, spare n4 from step 300"),
        (ENDED, NONE, "waiting for n3, at most 60 s, then restarting from step 300"),
        (ENDED, TWO, "restarting on n1, n2 from step 300"),
        (DECIDED, SPARE, "restarting on n1, n2, spare n4 from step 300"),
        ([*DECIDED, event("replaced", 131.0, None, start=1, lost=2, host="n3", by="n5")], SPARE,
         "restarting on n1, n2, spare n5 from step 300"),
        ([*DECIDED, WITHOUT], TWO, "restarting on n1, n2 from step 300"),
        ([*DECIDED, WAITING], NONE,
         "waiting for n3 (No route to host), at most 60 s, then restarting from step 300"),
    ],
)  # fmt: skip
def test_what_is_lost_and_what_follows(events: list[Event], has: Reserves, words: str) -> None:
    assert recovery(events, has) == Recovery(("n3",), 120.0, words)


def test_a_node_that_left_a_frozen_leader_is_not_lost() -> None:
    woke = [go(0, 100.0), event("lost_node", 120.0, lost=2, host="n3", reason="closed", slept=40.0)]
    assert recovery(woke, SPARE, away=()) is None


def test_an_agent_that_is_gone_costs_no_machine() -> None:
    assert recovery(ENDED, SPARE, away=()) == Recovery(("n3",), 120.0, "restarting on n1, n2, n3 from step 300")


def test_the_machines_are_those_that_the_next_start_has() -> None:
    now = replace(RECORD, hosts=("n1", "n2", "n4"))
    after = [*REPLACED, event("agent_started", 132.0, start=1, host="n1")]
    found = recovery(after, SPARE, (), now)
    assert found == Recovery(("n3",), 120.0, "restarting on n1, n2, spare n4 from step 300")
    assert recovery([*after, go(1, 135.0, "step_00000300")], SPARE, (), now) is None


def test_the_forecast_has_a_former_machine_if_no_spare_is_free() -> None:
    """By the rule of a real start: spare n4 has replaced n2, and is lost in its turn."""
    now, has = replace(RECORD, hosts=("n1", "n4", "n3")), replace(NONE, hosts=("n1", "n4", "n3"))
    events = [event("lost_node", 120.0, lost=1, host="n4", reason="-") if each in CUT[2:] else each for each in ENDED]

    def words(**fields: Any) -> str:
        found = recovery(events, replace(has, **fields), ("n4",), now)
        assert found is not None
        return found.next

    back = {"free": ("n2",), "former": frozenset({"n2"})}
    assert words() == "waiting for n4, at most 60 s, then restarting from step 300"
    assert words(**back) == "restarting on n1, n3, n2 (if it is back) from step 300"
    assert words(**{**back, "free": ("n5", "n2")}) == "restarting on n1, n3, spare n5 from step 300"


def test_a_spare_that_was_replaced_in_its_turn_is_in_no_forecast() -> None:
    again = event("replaced", 140.0, None, start=1, lost=2, host="n3", by="n5")
    found = recovery([*REPLACED, again], SPARE)
    assert found == Recovery(("n3",), 120.0, "restarting on n1, n2, spare n5 from step 300")


def test_node_0_is_lost_without_a_word() -> None:
    silent = [go(0, 100.0), event("gave_up", 125.0, 1, outcome="failed", cause="infra", reason="lost node 0")]
    assert recovery(silent, SPARE, ("n1",)) == Recovery(
        ("n1",), 115.0, "restarting on n2, n3, spare n4 from the newest checkpoint, if its machines have one"
    )


def test_a_loss_of_node_0_is_as_old_as_the_first_node_that_noticed_it_also_once_another_machine_is_node_0() -> None:
    left = event("gave_up", 125.0, 1, outcome="failed", cause="infra", reason="lost node 0")
    by = event("replaced", 131.0, None, start=1, lost=0, host="n1", by="n4")
    now = replace(SPARE, hosts=("n4", "n2", "n3"), former=frozenset({"n1"}))
    found = recovery([go(0, 100.0), left, relaunch(1, 1, 130.0), by], now, ())
    assert found == Recovery(("n1",), 125.0, "restarting on n2, n3, spare n4 from step 300")


AT = time.strftime("%H:%M:%S", time.localtime(110.5))


def ended(**progress: Any) -> list[Event]:
    return [*CUT, event("gang_ended", 123.0, outcome="failed", cause="infra", reason=LOSS, attempt=0, **progress)]


@pytest.mark.parametrize(
    ("events", "newest", "words"),
    [
        (ended(step=None), None, "without a checkpoint"),  # node 0 has reported that no file was written
        ([*ended(step=None), relaunch(1, 1, 130.0, None)], None, "without a checkpoint"),
        (ended(step=None, saved=110.5), None, "from the newest checkpoint, if its machines have one"),
        (ended(step=None, saved=110.5), Newest("last.pt", 110.5), f"from last.pt of {AT} or a newer one"),
        (CUT, Newest("last.pt", 110.5), f"from last.pt of {AT} or a newer one"),
        (ENDED, Newest("last.pt", 110.5), "from step 300"),
    ],
)
def test_a_checkpoint_without_a_step_is_a_checkpoint(events: list[Event], newest: Newest | None, words: str) -> None:
    state = reduce(RECORD, events, {0: True, 1: True, 2: None}, rank0_done=False)
    found = recovery_of(RECORD, events, state, SPARE, lambda: newest)
    assert found is not None
    assert found.next == f"restarting on n1, n2, n3 {words}"


def test_no_restart_is_left_or_wanted() -> None:
    spent = replace(RECORD, job_document={"retry": {"infra": 0}})
    assert recovery(ENDED, SPARE, record=spent) == Recovery(("n3",), 120.0, "no restart is left", restarts=False)
    assert recovery([*ENDED, event("cancel", 121.0, None)], SPARE) is None
    assert recovery([go(0, 100.0)], SPARE) is None


def test_a_node_that_can_not_reach_node_0_is_named_with_the_reason_until_it_joins() -> None:
    late = [
        event("agent_started", 99.0, host="n1"), event("joined", 99.5, joined=0), event("joined", 99.6, joined=1),
        event("agent_started", 99.0, 2, host="n3"), event("cant_reach", 109.0, 2, why="no answer within 10 s"),
        event("cant_reach", 119.0, 2, why="10.0.0.1: timed out (16 ports from 15000 to 15015)"),
    ]  # fmt: skip

    def detail(events: list[Event]) -> str:
        return reduce(RECORD, events, {0: True, 1: True, 2: True}, rank0_done=False).detail

    why = "10.0.0.1: timed out (16 ports from 15000 to 15015)"
    assert detail(late) == f"waiting for node 2 (n3): it can't reach node 0 (n1) ({why})"
    assert detail([*late, event("reached_leader", 120.0, 2, addr="10.0.0.1")]) == "waiting for node 2"

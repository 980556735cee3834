"""Properties of each verdict: no order of arrival matters, a success is final, the earliest own failure counts."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.outcome.gang import EndedAttempt, culprit_of, end_of
from orchestrator.outcome.verdict import Cause, Outcome
from orchestrator.protocol.rank_reports import Culprit
from orchestrator.runs.record import RunRecord
from orchestrator.runs.state import HandleStatus
from orchestrator.supervisor.decide import Finish, decide
from orchestrator.supervisor.observe import Evidence, Observation
from tests.events import typed
from tests.unit.runs.test_last_moments import BUDGET, LAST, NODES, event

Event = dict[str, Any]
GONE = dict.fromkeys(range(NODES), False)
CULPRIT = {"rank": 2, "node": 1, "host": "n1", "code": 1, "signal": None, "victim": False, "after_stop": False}

# What can be recorded after the ranks of an attempt have started, by whom: None is the submitting machine.
LATER: dict[int | None, list[Event]] = {
    None: [
        event("cancel", now=False), event("cancel", reason="another trial was better"),
        event("clock", of=1, start=0, ahead=0.0), event("found_lost", reason="no agent ever reported"),
        event("swept", ended=2),
    ],
    0: [
        event("slept", 0, seconds=40.0), event("lost_node", 0, lost=1, host="n1", reason="closed", slept=40.0),
        event("stopping", 0, reason="preempted", signal="SIGTERM"), event("time_limit", 0, seconds=60),
        event("attempt_failed", 0, attempt=0, culprit=CULPRIT, cause="user_error", step=None),
        event("gang_ended", 0, outcome="failed", cause="infra", reason="node 1 (n1) was lost", attempt=0),
        event("gang_ended", 0, outcome="failed", cause="user_error", reason="", attempt=0),
        event("gang_ended", 0, outcome="preempted", cause="preempted", reason="", attempt=0),
        event("gave_up", 0, outcome="failed", cause="no_progress", reason="3 starts in a row"),
    ],
    1: [
        event("trouble", 1, reason="the launcher was killed", cause="infra"),
        event("gave_up", 1, outcome="failed", cause="infra", reason="node 1 lost node 0: no heartbeat for 10 s"),
        event("agent_ended", 1, outcome="failed", code=1, swept=0, survivors=[7]),
    ],
    2: [
        event("gave_up", 2, outcome="failed", cause="infra", reason="node 2 lost node 0: closed"),
        event("agent_ended", 2, outcome="failed", code=1, swept=0, survivors=[]),
    ],
}  # fmt: skip
STREAMS = st.fixed_dictionaries({who: st.lists(st.sampled_from(each), max_size=4) for who, each in LATER.items()})


@st.composite
def merged(draw: st.DrawFn, streams: dict[int | None, list[Event]]) -> list[Event]:
    """The streams in one order of arrival: each writer's own order stays."""
    order = draw(st.permutations([who for who, events in streams.items() for _ in events]))
    left = {who: iter(events) for who, events in streams.items()}
    return [next(left[who]) for who in order]


@st.composite
def two_orders(draw: st.DrawFn) -> tuple[list[Event], list[Event]]:
    later = draw(STREAMS)
    known = draw(st.sampled_from([LAST, LAST[:-1], LAST[:-4]]))
    streams = {who: [each for each in known if each.get("node") == who] + later[who] for who in later}
    return draw(merged(streams)), draw(merged(streams))


def seen(events: list[Event], **values: Any) -> Observation:
    record = RunRecord("r-1", nnodes=NODES, hosts=("n0", "n1", "n2"), job_document={"retry": BUDGET})
    return Observation(Evidence(record, tuple(typed(events)), GONE, True, **values), handle=HandleStatus.SUBMITTED)


@given(two_orders(), st.booleans())
def test_the_verdict_is_the_same_in_whatever_order_events_arrive(
    orders: tuple[list[Event], list[Event]], relaunches: bool
) -> None:
    first, second = (decide(seen(events, relaunches=relaunches)) for events in orders)
    assert first == second
    assert first  # all agents are gone, so something is decided


@given(STREAMS, st.booleans())
def test_a_success_is_never_followed_by_a_start(later: dict[int | None, list[Event]], relaunches: bool) -> None:
    events = [*LAST, *(each for who in later for each in later[who])]
    (finish,) = decide(seen(events, relaunches=relaunches))
    assert isinstance(finish, Finish)
    assert finish.verdict.outcome is Outcome.SUCCEEDED


EXITS = st.builds(
    lambda rank, code, victim, after: Culprit(
        rank, code, victim=victim and code not in (0, 95), node=rank // 2, after_stop=after
    ),
    st.integers(0, 5), st.sampled_from([0, 0, 1, 2, 17, 93, 95]), st.booleans(), st.booleans(),
)  # fmt: skip


@given(st.lists(EXITS, max_size=8))
def test_the_earliest_failure_that_is_a_ranks_own_is_the_culprit(exits: list[Culprit]) -> None:
    own = [each for each in exits if each.code not in (0, 95) and not each.victim and not each.after_stop]
    found = culprit_of(exits)
    if own:
        assert found == own[0]
    failed = any(each.code not in (0, 95) for each in exits)
    assert (found is not None) == failed


@given(st.lists(EXITS, max_size=8), st.sampled_from(list(Cause)), st.sampled_from(["", "node 1 (n1) was lost"]))
def test_no_attempt_follows_one_whose_ranks_all_ended_well(exits: list[Culprit], stopped: Cause, lost: str) -> None:
    end = end_of(
        EndedAttempt(exits, ended_well=True, stopped=stopped, lost=lost, retry={"infra": None, "user_error": None})
    )
    assert (end.outcome, end.again) == (Outcome.SUCCEEDED, False)


@given(st.lists(EXITS, max_size=8), st.integers(0, 4))
def test_another_attempt_has_a_budget_that_allows_it(exits: list[Culprit], used: int) -> None:
    end = end_of(EndedAttempt(exits, ended_well=False, retry={"infra": 2}, restarts=("infra",) * used))
    assert not end.again or (end.cause is Cause.INFRA and used < 2 and end.culprit is not None)

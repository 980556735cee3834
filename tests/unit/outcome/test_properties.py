"""Properties of each verdict: no order of arrival matters, and a success is final."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.outcome.ends import Blame, blame_of
from orchestrator.outcome.gang import EndedAttempt, culprit_of, end_of
from orchestrator.outcome.verdict import Cause, Outcome
from orchestrator.protocol.rank_reports import Culprit, RankError
from orchestrator.runs.record import RunRecord
from orchestrator.runs.state import HandleStatus
from orchestrator.supervisor.decide import Finish, decide
from orchestrator.supervisor.observe import Evidence, Observation
from tests.events import typed
from tests.unit.runs.test_last_moments import BUDGET, LAST, NODES, event

Event = dict[str, Any]
GONE = dict.fromkeys(range(NODES), False)
CULPRIT = {"rank": 2, "node": 1, "host": "n1", "code": 1, "signal": None}

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


ERRORS = {
    "own": RankError("ValueError", "boom"), "torch": RankError("RuntimeError", "Connection closed by peer"),
    "socket": RankError("ConnectionResetError", "[Errno 104] Connection reset by peer"),
    "launcher": RankError("LauncherLost", "the launcher of this node was killed by SIGKILL"),
    "worker": RankError("RuntimeError", "Pin memory thread exited unexpectedly"),
}  # fmt: skip
ENDED_BY = st.sampled_from([
    {"code": 0}, {"code": 95}, {"code": 93}, {"code": 17}, {"signal": "SIGKILL"}, {"signal": "SIGSEGV"},
    {"signal": "SIGABRT", "finished": True}, {"signal": "SIGTERM"}, {"code": 0, "unsaved": "no room"},
    *({"code": 1, "error": ERRORS[name]} for name in ("own", "torch", "socket", "worker")),
    {"signal": "SIGABRT", "tail": ("Connection closed by peer",)}, {"signal": "SIGKILL", "error": ERRORS["launcher"]},
    {"hang": True, "in_collective": True, "error": RankError("Hang", "it stood still")},
])  # fmt: skip
EXITS = st.lists(
    st.builds(
        lambda rank, how, after, sent, kills: Culprit(
            rank, **how, node=rank // 2, after=after, sent=sent, oom_kills=kills
        ),
        st.integers(0, 5), ENDED_BY, st.sampled_from([0.0, 0.5, 1.25]), st.sampled_from(["", "", "SIGTERM", "SIGKILL"]),
        st.integers(0, 1),
    ),
    max_size=6, unique_by=lambda end: end.rank,
)  # fmt: skip
ATTEMPTS = st.builds(
    lambda exits, lost, stopped, folders: EndedAttempt(
        exits, ended_well=False, stopped=stopped, lost="node 3 (n3) was lost" if lost else "", lost_ranks=lost,
        folders_lost=folders, retry={"infra": 2, "user_error": 1},
    ),
    EXITS, st.booleans(), st.sampled_from([Cause.NONE] * 3 + [Cause.PREEMPTED]), st.sampled_from(["", "", "node 1"]),
)  # fmt: skip


@settings(max_examples=300)
@given(ATTEMPTS, st.randoms())
def test_no_order_of_ends_changes_the_verdict(attempt: EndedAttempt, chance: random.Random) -> None:
    ends = list(attempt.exits)
    chance.shuffle(ends)
    assert end_of(replace(attempt, exits=ends)) == end_of(attempt)


@given(EXITS)
def test_whoever_was_killed_is_to_blame_before_whoever_failed(exits: list[Culprit]) -> None:
    found = culprit_of(exits)
    failed = [each for each in exits if each.code not in (0, 95)]
    assert (found is not None) == bool(failed)
    for blame in (Blame.NO_RETRY, Blame.KILLED, Blame.FAILED):
        first = min(
            (each for each in failed if blame_of(each) is blame), key=lambda end: (end.after, end.rank), default=None
        )
        if first is not None:
            assert found == first
            return


@given(ATTEMPTS)
def test_a_lost_node_is_to_blame_unless_a_rank_rules_out_another_start(attempt: EndedAttempt) -> None:
    end = end_of(attempt)
    if attempt.lost_ranks and attempt.stopped is Cause.NONE:
        assert end.cause in (Cause.INFRA, Cause.NO_RETRY, Cause.CHECKPOINT)
        assert end.reason == attempt.lost


@given(EXITS, st.sampled_from(list(Cause)), st.sampled_from(["", "node 1 (n1) was lost"]))
def test_no_attempt_follows_one_whose_ranks_all_ended_well(exits: list[Culprit], stopped: Cause, lost: str) -> None:
    end = end_of(
        EndedAttempt(exits, ended_well=True, stopped=stopped, lost=lost, retry={"infra": None, "user_error": None})
    )
    assert (end.outcome, end.again) == (Outcome.SUCCEEDED, False)


@given(EXITS, st.integers(0, 4))
def test_another_attempt_has_a_budget_that_allows_it(exits: list[Culprit], used: int) -> None:
    end = end_of(EndedAttempt(exits, ended_well=False, retry={"infra": 2}, restarts=("infra",) * used))
    assert not end.again or (end.cause is Cause.INFRA and used < 2 and end.culprit is not None)

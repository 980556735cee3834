"""The reduction of a run's events: what state, whose fault, and never a success that is not whole."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.looking.state import _awaited
from orchestrator.outcome.judge import lacking, what_follows
from orchestrator.outcome.rule import Seen
from orchestrator.outcome.rules import hint_of
from orchestrator.outcome.sentences import culprit_in_words
from orchestrator.outcome.verdict import Cause, Verdict
from orchestrator.protocol.events import GoingOnWithout, read_events
from orchestrator.runs.record import RunRecord
from orchestrator.runs.reducer import reduce
from orchestrator.runs.state import FINAL, RunState
from tests.events import culprit, typed

RECORD = {
    "run_id": "r-1", "name": "r", "profile_name": "local-2x2", "created": 1000.0, "nnodes": 2, "hosts": ["a", "b"],
    "world_size": 4,
}  # fmt: skip
ALIVE, GONE = {0: True, 1: True}, {0: False, 1: False}
CULPRIT = {
    "rank": 2, "node": 1, "host": "b", "code": 1, "signal": None,
    "error": {"type": "ValueError", "message": "boom\nand more", "traceback": "Traceback ...\nValueError: boom"},
    "tail": ["step 1", "ValueError: boom"],
}  # fmt: skip

WORKER_KILLED = {"type": "RuntimeError", "message": "Pin memory thread exited unexpectedly"}


def event(kind: str, node: int | None = None, **values: Any) -> dict[str, Any]:
    clock: dict[str, Any] = {"time": 1001.0} if node is None else {"time": 1001.0, "node": node, "seq": 0, "mono": 1.0}
    return {"kind": kind, **clock, **values}


def started(node: int, attempt: int = 0) -> dict[str, Any]:
    return event("started", node, attempt=attempt, ranks=[2 * node, 2 * node + 2], world_size=4,
                 master_addr="10.0.0.1", master_port=4242)  # fmt: skip


SUBMITTED = [event("submitted")]
AGENTS = [event("agent_started", 0, host="a", pid=1, started=1), event("agent_started", 1, host="b", pid=2, started=1)]
JOINED = [event("joined", 0, joined=node, host="ab"[node], nproc=2) for node in range(2)]
GO = [event("go", 0, attempt=0, world_size=4, master_port=4242, nproc=[2, 2])]
RUNNING = [*SUBMITTED, *AGENTS, *JOINED, *GO, started(0), started(1)]
EXITS = [event("rank_exit", rank // 2, rank=rank, code=0, signal=None, attempt=0) for rank in range(4)]
WELL = [event("gang_ended", 0, outcome="succeeded", cause="", reason="", attempt=0)]
LEFT = [event("agent_ended", node, outcome="succeeded", code=0, swept=0, survivors=[]) for node in range(2)]
SUCCESS = [*RUNNING, *EXITS, *WELL, *LEFT]
FAILED = [
    *RUNNING,
    event("rank_exit", 1, rank=2, code=1, signal=None, attempt=0),
    event("attempt_failed", 0, attempt=0, culprit=CULPRIT, cause="user_error", step=None),
    event("gang_ended", 0, outcome="failed", cause="user_error", reason="", attempt=0),
    *[event("agent_ended", node, outcome="failed", code=1, swept=0, survivors=[]) for node in range(2)],
]
RESTARTED = [
    *RUNNING,
    event("attempt_failed", 0, attempt=0, culprit=CULPRIT, cause="infra", step=40),
    event("restart", 0, attempt=1, cause="infra", from_step=40),
]


def without(events: list[dict[str, Any]], *gone: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in events if one not in gone]


def state(events: list[dict[str, Any]], alive: Any = GONE, *, done: bool = True, **record: Any) -> RunState:
    return reduce(RunRecord.from_json("r-1", {**RECORD, **record}), read_events(events), alive, rank0_done=done)


def verdict(events: list[dict[str, Any]], alive: Any = GONE, *, done: bool = True) -> Verdict:
    found = state(events, alive, done=done).verdict
    assert found is not None
    return found


# -- success


def test_success_is_the_leaders_word_and_the_done_marker() -> None:
    found = state(SUCCESS)
    assert (found.state, found.verdict) == ("succeeded", Verdict("succeeded"))
    assert (found.started, found.ended, found.master) == (1001.0, 1001.0, "10.0.0.1:4242")
    assert [(node.state, node.ranks, node.exits) for node in found.nodes] == [
        ("ended", (0, 2), {0: "exit code 0", 1: "exit code 0"}),
        ("ended", (2, 4), {2: "exit code 0", 3: "exit code 0"}),
    ]


def test_no_done_marker_is_no_success() -> None:
    assert verdict(SUCCESS, done=False) == Verdict(
        "failed", "infra", "all nodes said done, but rank 0 left no done marker"
    )


@pytest.mark.parametrize(("node", "name"), [(0, "node 0 (a)"), (1, "node 1 (b)")])
def test_a_node_that_is_lost_after_all_ranks_ended_well_is_named_and_takes_nothing_back(node: int, name: str) -> None:
    unsaid = without(SUCCESS, LEFT[node])
    found = state(unsaid)
    assert found.verdict == Verdict(
        "succeeded", reason=f"all ranks ended well; after that, these nodes were lost: {name}"
    )
    assert [each.state for each in found.nodes] == ["lost" if each == node else "ended" for each in (0, 1)]
    assert what_follows(found.verdict, typed(unsaid), {"infra": 3}, lost=True) == found.verdict
    assert verdict(unsaid, done=False).reason == "all nodes said done, but rank 0 left no done marker"


@pytest.mark.parametrize("alive", [{0: False, 1: None}, {0: False, 1: True}])
def test_a_success_waits_for_the_node_that_may_still_speak(alive: dict[int, bool | None]) -> None:
    assert state(without(SUCCESS, LEFT[1]), alive).verdict is None


def test_a_node_that_missed_the_leaders_goodbye_is_no_failure() -> None:
    gave_up = event("gave_up", 1, outcome="failed", cause="infra", reason="node 1 lost node 0: closed the connection")
    assert verdict([*without(SUCCESS, LEFT[1]), gave_up, {**LEFT[1], "outcome": "failed"}]) == Verdict("succeeded")


def test_without_the_leaders_word_every_exit_and_the_marker_are_a_success() -> None:
    unsaid = without(SUCCESS, *WELL)
    assert verdict(unsaid) == Verdict("succeeded")
    for events, done in ((unsaid, False), (without(unsaid, EXITS[3]), True)):
        found = verdict(events, done=done)
        said = ("failed", "the agents ended, but the record of how the attempt ended is lost")
        assert (found.outcome, found.reason) == said


@settings(max_examples=300)
@given(st.data())
def test_no_loss_of_records_raises_or_makes_a_success(data: st.DataObject) -> None:
    """Files cut anywhere, lines lost, letters flipped: `succeeded` needs the leader's word, or every rank's exit."""
    whole = data.draw(st.sampled_from([SUCCESS, FAILED, RESTARTED]))
    text = "".join(json.dumps(one) + "\n" for one in whole)
    for _ in range(data.draw(st.integers(0, 4))):
        start = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 60))
        text = text[:start] + data.draw(st.sampled_from(["", "x", "0", "-", '"', "}", "null"])) + text[start + cut :]
    events = []
    for line in text.splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    events = [one for one in events if isinstance(one, dict)]
    found = state(events, data.draw(st.sampled_from([ALIVE, GONE, {}, {0: None, 1: False}])))
    if found.state == "succeeded":
        said = [one for one in events if one.get("kind") == "gang_ended" and one.get("outcome") == "succeeded"]
        exits = {one.get("rank") for one in events if one.get("kind") == "rank_exit" and one.get("code") == 0}
        assert said or exits >= {1, 2, 3}  # rank 0's is told by its marker too
    json.dumps(found.to_json())


@given(st.lists(st.sampled_from([*SUCCESS, *FAILED, *RESTARTED]), max_size=12), st.data())
def test_missing_fields_never_raise(events: list[dict[str, Any]], data: st.DataObject) -> None:
    maimed = []
    wrong_values = st.sampled_from([None, "x", -1, 1.5, [], {}, True])
    for sound in events:
        culprit = {**CULPRIT, data.draw(st.sampled_from(sorted(CULPRIT))): data.draw(wrong_values)}
        one = {**sound, "culprit": culprit} if "culprit" in sound else sound
        gone = data.draw(st.sets(st.sampled_from(sorted(one))))
        kept = {name: value for name, value in one.items() if name not in gone}
        wrong = data.draw(st.sampled_from([*sorted(one), ""]))
        maimed.append({**kept, wrong: data.draw(wrong_values)} if wrong else kept)
    assert state(maimed, data.draw(st.sampled_from([ALIVE, GONE, {}]))).run_id == "r-1"


@given(st.sets(st.sampled_from(sorted(RECORD))))
def test_a_record_that_lacks_fields_never_raises(gone: set[str]) -> None:
    record = {name: value for name, value in RECORD.items() if name not in gone - {"run_id"}}
    assert reduce(RunRecord.from_json("r-1", record), typed(SUCCESS), GONE, rank0_done=True).run_id == "r-1"


def test_events_of_a_node_that_the_run_does_not_have_are_no_node() -> None:
    found = state([*SUCCESS, event("agent_started", 7, host="x"), event("agent_started", -1, host="x")])
    assert (len(found.nodes), found.state) == (2, "succeeded")


# -- failure


def test_the_culprit_is_named_with_its_last_words() -> None:
    found = verdict(FAILED)
    assert found.reason == "rank 2 on node 1 (b) ended with exit code 1: ValueError: boom"
    assert (found.cause, found.rank, found.node, found.host, found.code) == ("user_error", 2, 1, "b", 1)
    assert found.tail == ("step 1", "ValueError: boom")
    assert found.error == CULPRIT["error"]


@pytest.mark.parametrize(
    ("culprit", "reason", "hint"),
    [
        ({"code": None, "signal": "SIGKILL", "error": None}, "ended with SIGKILL", "ran out of memory"),
        ({"code": 17, "error": None}, "ended with exit code 17", ""),
        ({"code": 127, "error": None}, "ended with exit code 127", "not found"),
        ({"error": WORKER_KILLED}, "RuntimeError: Pin memory", "num_workers"),
        ({"error": WORKER_KILLED, "oom_kills": 1}, "; the kernel killed a process of this rank", "memory was short"),
        ({"lacks": "the module timm is missing on n1"}, "boom; the module timm is missing on n1", "orch doctor -p "),
        ({"error": {"type": "ValueError", "message": None}}, "exit code 1: ValueError: None", ""),
        (
            {"error": {"type": "torch.OutOfMemoryError", "message": "CUDA out of memory. Tried"}},
            "Tried",
            "lower global",
        ),
    ],
)
def test_how_a_rank_ended_is_said_and_hinted_at(culprit: dict[str, Any], reason: str, hint: str) -> None:
    events = [*FAILED[:-4], event("attempt_failed", 0, attempt=0, culprit={**CULPRIT, **culprit, "tail": []},
                                  cause="infra"), {**FAILED[-3], "cause": "infra"}, *FAILED[-2:]]  # fmt: skip
    found = verdict(events)
    assert reason in found.reason
    assert hint in found.hint
    assert bool(hint) == bool(found.hint)


@pytest.mark.parametrize(
    ("left", "waited", "words"),
    [
        ([2], [0], "ended with exit code 0 while rank 0 waited for it: RuntimeError: closed by peer"),
        ([1, 2, 3], [0], "ended with exit code 0, as ranks 1, 3 did, while rank 0 waited for it: RuntimeError"),
        ([2], [0, 1], "ended with exit code 0 while ranks 0, 1 waited for it: RuntimeError"),
    ],
)
def test_a_rank_that_left_the_others_is_named_with_those_that_waited(
    left: list[int], waited: list[int], words: str
) -> None:
    early = {"ranks": left, "waited": waited, "said": "RuntimeError: closed by peer\nand more"}
    culprit = {"rank": 2, "node": 1, "host": "b", "code": 0, "signal": None, "left_early": early}
    events = [{**one, "culprit": culprit} if one["kind"] == "attempt_failed" else one for one in FAILED]
    found = verdict(events)
    assert found.reason.startswith(f"rank 2 on node 1 (b) {words}")
    assert (found.cause, found.rank, found.code) == ("user_error", 2, 0)
    assert "uneven data" in found.hint


def test_trouble_is_said_of_all_nodes_that_had_the_same_with_the_launchers_last_lines() -> None:
    why = "setup line 1 failed: module load x: module: command not found"
    end = event("gang_ended", 0, outcome="failed", cause="user_error", reason=f"node 1 (b): {why}", attempt=0,
                failed_node=1, tail=["module: command not found"])  # fmt: skip
    left = [event("agent_ended", node, outcome="failed", code=1, swept=0, survivors=[]) for node in range(2)]
    told = [event("trouble", node, reason=why, cause="user_error") for node in range(2)]
    found = verdict([*SUBMITTED, *AGENTS, *JOINED, *told, end, *left])
    assert found.reason == f"node 0 (a), node 1 (b): {why}"
    assert (found.node, found.host, found.tail) == (1, "b", ("module: command not found",))
    assert "/etc/profile.d/modules.sh" in found.hint
    alone = verdict([*SUBMITTED, *AGENTS, *JOINED, told[1], end, *left])
    assert alone.reason == f"node 1 (b): {why}"


def test_no_progress_is_said_beside_the_culprit() -> None:
    events = [{**one, "cause": "no_progress", "reason": "3 attempts in a row"} if one["kind"] == "gang_ended" else one
              for one in FAILED]  # fmt: skip
    found = verdict(events)
    assert (found.cause, found.rank) == ("no_progress", 2)
    assert found.reason.endswith("ValueError: boom; 3 attempts in a row")


def test_only_the_last_attempts_culprit_is_blamed() -> None:
    later = {**CULPRIT, "rank": 0, "node": 0, "host": "a"}
    events = [
        *RESTARTED,
        event("go", 0, attempt=1, world_size=4),
        started(0, 1),
        started(1, 1),
        event("attempt_failed", 0, attempt=1, culprit=later, cause="infra"),
        event("gang_ended", 0, outcome="failed", cause="infra", reason="", attempt=1),
        *FAILED[-2:],
    ]
    found = state(events)
    assert (found.verdict and found.verdict.rank, found.attempt, found.restarts) == (0, 1, 1)


@pytest.mark.parametrize(
    ("outcome", "words"), [("preempted", "asked to be started again"), ("timeout", "its time limit was reached")]
)
def test_a_run_that_was_stopped_can_be_resumed(outcome: str, words: str) -> None:
    ended = event("gang_ended", 0, outcome=outcome, cause=outcome, reason="", attempt=0)
    found = verdict([*RUNNING, ended, *FAILED[-2:]])
    assert (found.outcome, found.cause, found.hint) == ("failed", outcome, "")
    assert words in found.reason
    saved = verdict([*RUNNING, {**ended, "step": 40}, *FAILED[-2:]])
    assert saved.hint == "resume it from step 40: orch submit --from r-1 --resume r-1"


@pytest.mark.parametrize(
    ("kind", "signal", "words"),
    [
        ("local", "SIGTERM", "stopped by SIGTERM, which orch has not sent"),
        ("slurm", "SIGTERM", "stopped by SIGTERM from Slurm"),
        ("slurm-login", "SIGUSR2", "stopped by SIGUSR2 from Slurm (time limit near)"),
        ("sge", "SIGUSR2", "stopped by SIGUSR2 from Grid Engine"),  # qdel, or any other end that it announces
        ("sge", "SIGXCPU", "stopped by SIGXCPU from Grid Engine (time limit near)"),
    ],
)
def test_a_signal_that_stopped_a_run_is_named(kind: str, signal: str, words: str) -> None:
    ended = event("gang_ended", 0, outcome="preempted", cause="preempted", reason="", attempt=0)
    stopping = event("stopping", 0, reason="preempted", signal=signal)
    found = state([*RUNNING, stopping, ended, *FAILED[-2:]], kind=kind).verdict
    assert found is not None
    assert found.reason == words


def test_starts_without_progress_are_the_reason_whoever_was_lost_with_them() -> None:
    reason = "gave up: 3 starts in a row hit the time limit without saving a new checkpoint"
    given_up = event("gave_up", 0, outcome="failed", cause="no_progress", reason=reason)
    found = verdict([*SUBMITTED, *AGENTS, given_up, FAILED[-2]])  # node 1 was ended by srun before its last words
    assert (found.cause, found.reason) == ("no_progress", reason)
    assert found.hint.startswith("raise `time` in the profile")


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        ({"step": 40}, ""),
        ({"step": None, "saved": 1000.5}, "it can go on from the files that it has written"),
        ({"step": None, "beat": 7}, "it has saved nothing to go on from"),
        ({"step": None}, "it has saved nothing to go on from"),
    ],
)
def test_a_run_that_was_stopped_says_what_it_can_go_on_from(saved: dict[str, Any], words: str) -> None:
    end = event("gang_ended", 0, outcome="timeout", cause="timeout", reason="", attempt=0, **saved)
    found = verdict([*RUNNING, end, *FAILED[-2:]])
    assert found.reason == "; ".join(filter(None, ["its time limit was reached", words]))
    assert ("raise the time limit" in found.hint) == ("nothing" in words)


def test_a_time_limit_that_came_before_anything_was_saved_is_the_verdict_whoever_srun_has_ended_then() -> None:
    end = event("gang_ended", 0, outcome="preempted", cause="preempted", reason="", attempt=0, step=None)
    why = "its time limit of 1 min came before it had saved anything new: another start would end in the same way"
    gave_up = event("gave_up", 0, outcome="failed", cause="no_progress", reason=why)
    for events in ([end, gave_up, *FAILED[-2:]], [end, gave_up, FAILED[-2]], [gave_up, FAILED[-2]]):
        found = verdict([*RUNNING, *events])
        assert (found.outcome, found.cause, found.reason) == ("failed", "no_progress", why)
        assert "save checkpoints" in found.hint
    assert verdict([*RUNNING, event("cancel", now=False), end, gave_up, *FAILED[-2:]]).cause != "no_progress"


def test_a_gang_that_never_formed_says_why() -> None:
    reason = "node 1 (b) can't reach its neighbour a: 10.0.0.1:7000: timed out"
    ended = event("gang_ended", 0, outcome="failed", cause="infra", reason=reason, attempt=0)
    found = verdict([*SUBMITTED, *AGENTS, ended, *FAILED[-2:]])
    assert found.reason == reason
    assert "firewall" in found.hint


def test_an_agent_that_vanished_is_named() -> None:
    found = state(RUNNING, {0: False, 1: False})
    assert found.verdict is not None
    assert found.verdict.reason.startswith("the agent of node 0 (a), node 1 (b) vanished without a word")
    assert [node.state for node in found.nodes] == ["lost", "lost"]


def test_no_verdict_while_an_agent_lives_or_may_live() -> None:
    assert state(RUNNING, {0: False, 1: True}).verdict is None
    assert state(RUNNING, {0: False, 1: None}).verdict is None
    assert state(FAILED[:-1], {0: False, 1: True}).verdict is None


def test_an_agent_that_died_before_its_first_word_is_lost_and_not_waited_for() -> None:
    found = state(SUBMITTED, {0: False, 1: False})
    assert found.state == "failed"
    assert found.verdict is not None
    assert "node 0 (a), node 1 (b)" in found.verdict.reason


def test_a_submit_that_died_before_it_started_an_agent() -> None:
    found = state([event("found_lost", reason="orch submit ended before it had started an agent")], {})
    assert found.verdict == Verdict("failed", "infra", "orch submit ended before it had started an agent")


def test_a_node_that_gave_up_tells_why() -> None:
    gave_up = event("gave_up", 1, outcome="failed", cause="infra", reason="node 1 (b) can't reach node 0: a: refused")
    found = verdict([*SUBMITTED, AGENTS[1], gave_up], {1: False})
    assert found.reason == "node 1 (b) can't reach node 0: a: refused"
    gone = verdict([*SUBMITTED, AGENTS[1], gave_up], {0: False, 1: False})
    assert gone.reason.startswith("the agent of node 0 (a) vanished without a word")
    assert gone.reason.endswith("; node 1 (b) can't reach node 0: a: refused")


def test_why_node_0_gave_up_is_the_reason_and_not_that_the_others_were_ended() -> None:
    why = "all of the agents' rendezvous ports are taken, by mallory (uid 1002): 21002, 21001"
    gave_up = event("gave_up", 0, outcome="failed", cause="infra", reason=why)
    found = verdict([*SUBMITTED, *AGENTS, gave_up], {1: False})
    assert (found.cause, found.reason) == ("infra", why)
    assert "ask the user who holds the ports to free them" in found.hint
    second = event("gave_up", 1, outcome="failed", cause="infra", reason="node 1 (b) can't reach node 0: a: refused")
    assert verdict([*SUBMITTED, *AGENTS, second, gave_up], {1: False}).reason == why


def test_why_a_node_did_not_join_is_its_own_word() -> None:
    why = "node 1 (b) can't reach node 0 (a): a: timed out (16 ports from 15190 to 32513)"
    late = "node 1 (b) did not join within 60 s"
    gave_up = event("gave_up", 1, outcome="failed", cause="infra", reason=why)
    end = event("gang_ended", 0, outcome="failed", cause="infra", reason=late, attempt=0)
    told = [*SUBMITTED, *AGENTS, event("joined", 0, joined=0), gave_up, end, *LEFT]
    found = verdict(told)
    assert found.reason == f"{why}; {late}"
    assert found.hint.startswith("a firewall")
    assert verdict([*told, event("joined", 0, joined=1)]).reason == late  # it was in: a consequence
    assert verdict(without(told, gave_up)).reason == late


def test_a_leader_that_slept_is_no_witness_of_who_was_lost() -> None:
    """Node 0 was frozen; node 1 left it for that, and by its end node 0 knows only that node 1 has left."""
    why = "node 1 lost node 0: no heartbeat for 9 s"
    gave_up = event("gave_up", 1, outcome="failed", cause="infra", reason=why)
    end = event("gang_ended", 0, attempt=0, outcome="failed", cause="infra", reason="node 1 (b) was lost: it left")
    slept = event("slept", 0, seconds=14.3)
    told = [*SUBMITTED, *AGENTS, *JOINED, gave_up, end, *LEFT]
    assert verdict(told).reason == "node 1 (b) was lost: it left"
    assert verdict([*told, slept]).reason == why


def test_a_submit_that_failed() -> None:
    found = state([event("submit_failed", reason="node 1: its agent can't be started")], {})
    assert (found.state, found.verdict and found.verdict.reason) == ("failed", "node 1: its agent can't be started")


# -- cancel


def test_a_cancelled_gang() -> None:
    ended = event("gang_ended", 0, outcome="cancelled", cause="cancelled", reason="", attempt=0)
    events = [*RUNNING, event("cancel", now=False), ended, *FAILED[-2:]]
    assert verdict(events).outcome == "cancelled"


def test_a_cancel_that_had_to_kill_the_agents() -> None:
    assert verdict([*RUNNING, event("cancel", now=True)]).outcome == "cancelled"


def test_a_cancel_before_the_agents_met() -> None:
    gave_up = event("gave_up", 0, outcome="cancelled", cause="cancelled", reason="")
    assert verdict([*SUBMITTED, *AGENTS, gave_up], {0: False, 1: False}).outcome == "failed"  # nobody cancelled it
    assert verdict([*SUBMITTED, event("cancel", now=False), *AGENTS, gave_up]).outcome == "cancelled"


def test_a_success_that_came_before_the_cancel_stays_one() -> None:
    assert verdict([*SUCCESS, event("cancel", now=False)]).outcome == "succeeded"


# -- while it lives


@pytest.mark.parametrize(
    ("events", "word"),
    [
        ([], "submitting"),
        (SUBMITTED, "pending"),
        ([*SUBMITTED, AGENTS[0]], "starting"),
        (RUNNING, "running"),
        (RESTARTED, "restarting"),
        ([*RESTARTED, event("go", 0, attempt=1, world_size=4)], "running"),
        ([*RUNNING, event("stopping", 0, reason="preempted")], "stopping"),
        ([*RUNNING, event("cancel", now=False)], "stopping"),
        ([*RUNNING, *WELL], "finishing"),
        ([*RUNNING, event("stopping", 0, reason="preempted"), *WELL], "stopping"),
        ([*RUNNING, event("something_new", 0), event("news")], "running"),
    ],
)
def test_live_states(events: list[dict[str, Any]], word: str) -> None:
    found = state(events, {0: True, 1: True} if events else {})
    assert (found.state, found.verdict, found.ended, found.is_final) == (word, None, None, False)
    assert word not in FINAL


def test_a_node_that_has_joined_the_gang_and_has_no_ranks_yet_is_joined() -> None:
    def nodes(events: list[dict[str, Any]]) -> list[str]:
        return [node.state for node in state(events, ALIVE).nodes]

    joined = [*SUBMITTED, *AGENTS, event("reached_leader", 1, addr="10.0.0.1")]
    assert nodes(joined) == ["starting", "joined"]
    assert nodes([*joined, started(1)]) == ["starting", "running"]
    assert nodes([*joined, AGENTS[1]]) == ["starting", "starting"]


def test_who_is_waited_for_is_said() -> None:
    assert state([*SUBMITTED, *AGENTS, JOINED[0]], ALIVE).detail == "waiting for node 1"
    assert state(RUNNING, ALIVE).detail == ""
    failed = "rank 2 on node 1 (b) ended with exit code 1: ValueError: boom"
    assert state(RESTARTED, ALIVE).detail == f"attempt 1 after {failed}"
    assert state([RESTARTED[-1]], ALIVE).detail == "attempt 1 after infra"


def test_ranks_of_a_new_attempt_have_not_ended() -> None:
    events = [*RUNNING, event("rank_exit", 1, rank=2, signal="SIGKILL", code=None), started(1, 1)]
    assert state(events, ALIVE).nodes[1].exits == {}
    assert state(events[:-1], ALIVE).nodes[1].exits == {2: "SIGKILL"}


def test_a_verdict_survives_json() -> None:
    one = verdict(FAILED)
    assert Verdict.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert Verdict.from_json({"outcome": "failed", "of_the_future": 1}) == Verdict("failed")
    assert Verdict.from_json({}).outcome == "failed"


@pytest.mark.parametrize(("nodes", "words"), [(1, ""), (2, "on 2 of 3 nodes, without c"), (3, "")])
def test_the_nodes_that_the_last_start_lacked_are_named_unless_they_were_back(nodes: int, words: str) -> None:
    decided = [GoingOnWithout(1, ("b", "c"), 1, 3), GoingOnWithout(2, ("c",), 2, 3)]
    assert lacking(decided, nodes) == words
    assert lacking([], nodes) == ""


def test_only_a_run_that_its_search_has_ended_is_stopped_early() -> None:
    assert not state(RUNNING, ALIVE).is_stopped_early
    ended = state(FAILED, GONE)
    assert ended.verdict is not None
    assert not ended.is_stopped_early
    assert replace(ended, verdict=replace(ended.verdict, cause=Cause.STOPPED_EARLY)).is_stopped_early


def test_a_node_that_nobody_has_heard_yet_may_have_everything_to_say() -> None:
    others = [each for each in SUCCESS if each.get("node") != 0]
    assert state(others, {0: None, 1: False}).verdict is None
    assert state(others, {0: True, 1: False}).verdict is None
    assert state(SUCCESS, {0: None, 1: None}).state == "succeeded"  # all has been said: who lives does not matter


def test_an_idle_run_says_so_until_it_is_busy_again() -> None:
    idle = event("unused", 0, attempt=0, seconds=1800, use="GPU 3 %")
    assert state([*RUNNING, idle], ALIVE).detail == "idle for 30 min and more: GPU 3 %"
    assert state([*RUNNING, idle, event("used", 0, attempt=0, by=1)], ALIVE).detail == ""


def test_a_start_that_waits_for_others_is_explained_until_a_rank_computes() -> None:
    waits, computes = (event("unjoined", 0, attempt=0, words=words) for words in ("rank 0 waits", ""))
    assert state([*RUNNING, waits], ALIVE).detail == "rank 0 waits"
    assert state([*RUNNING, waits, computes], ALIVE).detail == ""


def test_a_run_is_hung_until_its_ranks_have_moved_on() -> None:
    hung = [event("stall", 0, attempt=0, rank=rank, full=True, seconds=60.4, phase="train", step=7) for rank in (1, 2)]
    moved = [event("moved", 0, attempt=0, rank=rank) for rank in (2, 1)]
    assert state([*RUNNING, *hung], ALIVE).detail == "hung? rank 2 has made no progress for at least 60 s"
    assert state([*RUNNING, *hung, moved[0]], ALIVE).detail == "hung? rank 1 has made no progress for at least 60 s"
    assert state([*RUNNING, *hung, *moved], ALIVE).detail == ""


def test_a_run_whose_folder_was_removed_says_so_until_new_agents_have_started() -> None:
    lost = event("folder_lost", 0, of=1, host="b", path="/home/me/.orch/runs/r-1")
    words = "b: /home/me/.orch/runs/r-1 was removed during the run; the ranks continue without it"
    assert state([*RUNNING, lost], ALIVE).detail == words
    blind = state([*RUNNING, {**lost, "with_heartbeats": True}], ALIVE).detail
    assert blind == f"{words}; their heartbeats are lost, so orch may detect a hang late or not at all"
    assert state([*RUNNING, lost, *AGENTS, *JOINED, *GO, started(0), started(1)], ALIVE).detail == ""


def test_a_run_that_was_ended_for_idleness_is_cancelled_with_its_reason() -> None:
    end = event("gang_ended", 0, outcome="cancelled", cause="idle", reason="it was idle", attempt=0)
    left = [event("agent_ended", node, outcome="cancelled", code=1, swept=0, survivors=[]) for node in range(2)]
    found = verdict([*RUNNING, end, *left])
    assert (found.outcome, found.reason) == ("cancelled", "it was idle")


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ("t.py: error: unrecognized arguments: --lrr 3", "exit code 2: unrecognized arguments: --lrr 3"),
        ("Error: No such option: --lrr", "exit code 2: No such option: --lrr"),
        ("done", "exit code 2"),
    ],
)
def test_a_command_line_that_the_program_refused_is_the_reason(last: str, words: str) -> None:
    end = culprit(node=0, host="vm", code=2, tail=["usage: t.py [-h]", last, ""])
    assert culprit_in_words(end) == f"rank 0 on node 0 (vm) ended with {words}"


def test_a_hang_has_a_hint_with_the_command_that_shows_stacks() -> None:
    assert "orch stacks" in hint_of(Seen.of(culprit(node=0, host="vm", signal="SIGKILL", hang=True)))


def test_the_wait_for_a_machines_files_says_what_ends_it() -> None:
    record = RunRecord("r-1", profile_document={"node_wait": 60})
    waiting = state([*SUCCESS, event("left_behind", left=1, host="b", reason="b: no route")], GONE)
    words = "waiting for b (b: no route), at most 60 s; orch cancel r-1 ends the wait"
    assert _awaited(waiting, record) == [words]

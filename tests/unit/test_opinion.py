"""A scheduler's word beside the run's own files: who waits, who may go on, and whose reason is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.opinion import Opinion, joined
from orchestrator.records import NodeState, RunState, Verdict

NODES = tuple(NodeState(node, f"n{node}", "ended") for node in range(2))
ENDED = RunState("r-1", "r", "p", 0.0, "failed", nodes=NODES)
LIVE = RunState("r-1", "r", "p", 0.0, "running", nodes=tuple(replace(node, state="running") for node in NODES))
SUCCESS, PREEMPTED = Verdict("succeeded"), Verdict("failed", "preempted", "it was asked to stop", 1)
USER = Verdict("failed", "user_error", "rank 1 ended", rank=1)
LOST = Verdict("failed", "infra", "node 1 (n1) was lost: no beat")
WAITING = Opinion("waiting", "Slurm job 5 waits: (Priority)")
ACTIVE, UNKNOWN, GONE = Opinion("active", "RUNNING"), Opinion("unknown", "can't be asked"), Opinion("ended")
NODE_FAIL = Opinion("ended", outcome="failed", cause="infra", reason="Slurm job 5: one of its nodes failed")
TIMEOUT = Opinion("ended", outcome="failed", cause="timeout", reason="Slurm job 5: its time limit was reached")
CANCELLED = Opinion("ended", outcome="cancelled", reason="Slurm job 5: it was cancelled by alice")


def final(verdict: Verdict, *, nodes: tuple[NodeState, ...] = NODES) -> RunState:
    return replace(ENDED, state=verdict.outcome, verdict=verdict, nodes=nodes)


@pytest.mark.parametrize("state", ["submitting", "pending", "starting"])
def test_a_job_that_waits_is_pending_and_says_why(state: str) -> None:
    found = joined(replace(LIVE, state=state), WAITING)
    assert (found.state, found.detail) == ("pending", WAITING.detail)


def test_a_job_whose_nodes_were_taken_is_restarting() -> None:
    assert joined(LIVE, WAITING).state == "restarting"
    assert joined(replace(LIVE, state="stopping"), WAITING).state == "stopping"  # perhaps cancelled


def test_a_job_that_runs_without_a_word_is_starting() -> None:
    found = joined(replace(LIVE, state="pending"), ACTIVE)
    assert (found.state, found.detail) == ("starting", "RUNNING")
    assert joined(LIVE, ACTIVE) == LIVE


@pytest.mark.parametrize("opinion", [WAITING, ACTIVE, UNKNOWN])
@pytest.mark.parametrize("verdict", [PREEMPTED, LOST, Verdict("failed", "timeout")])
def test_no_verdict_while_the_job_may_go_on(opinion: Opinion, verdict: Verdict) -> None:
    found = joined(final(verdict), opinion)
    assert (found.state, found.verdict) == ("restarting", None)
    assert opinion.detail in found.detail


@pytest.mark.parametrize("opinion", [WAITING, ACTIVE, UNKNOWN, GONE, NODE_FAIL, TIMEOUT, CANCELLED, Opinion("none")])
@pytest.mark.parametrize("verdict", [SUCCESS, USER, Verdict("cancelled"), Verdict("failed", "no_progress")])
def test_an_end_that_nothing_follows_stands(opinion: Opinion, verdict: Verdict) -> None:
    assert joined(final(verdict), opinion) == final(verdict)


def test_the_schedulers_reason_comes_first_where_it_ended_the_job() -> None:
    found = joined(final(LOST), NODE_FAIL)
    assert found.verdict is not None
    assert found.verdict.reason == "Slurm job 5: one of its nodes failed; node 1 (n1) was lost: no beat"
    assert joined(final(LOST), GONE).verdict == LOST


def test_a_cancel_by_others_is_one() -> None:
    found = joined(final(PREEMPTED), CANCELLED)
    assert (found.state, found.verdict) == ("cancelled", Verdict("cancelled", "", CANCELLED.reason, 1))


def test_a_job_whose_agents_never_spoke_has_the_schedulers_reason_alone() -> None:
    silent = tuple(replace(node, state="lost") for node in NODES)
    found = joined(final(Verdict("failed", "infra", "no agent ever reported"), nodes=silent), TIMEOUT)
    assert found.verdict == Verdict("failed", "timeout", TIMEOUT.reason)
    assert joined(replace(LIVE, nodes=silent), TIMEOUT).state == "failed"


def test_slurm_that_cannot_be_asked_ends_nothing() -> None:
    assert joined(LIVE, UNKNOWN) == replace(LIVE, detail="can't be asked")
    assert joined(LIVE, Opinion("none")) == LIVE

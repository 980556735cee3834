"""A scheduler's word beside the run's own files: who waits, who may go on, and whose reason is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.looking.evidence import joined
from orchestrator.outcome.scheduler import JobEnd, SchedulerStatus
from orchestrator.outcome.verdict import Cause, NodeState, NodeStatus, Outcome, Verdict
from orchestrator.runs.state import RunState, RunStatus

NODES = tuple(NodeState(node, f"n{node}", NodeStatus.ENDED) for node in range(2))
ENDED = RunState("r-1", "r", "p", 0.0, RunStatus.FAILED, nodes=NODES)
LIVE = RunState(
    "r-1", "r", "p", 0.0, RunStatus.RUNNING, nodes=tuple(replace(node, state=NodeStatus.RUNNING) for node in NODES)
)
SUCCESS, PREEMPTED = Verdict(Outcome.SUCCEEDED), Verdict(Outcome.FAILED, Cause.PREEMPTED, "it was asked to stop", 1)
USER = Verdict(Outcome.FAILED, Cause.USER_ERROR, "rank 1 ended", rank=1)
LOST = Verdict(Outcome.FAILED, Cause.INFRA, "node 1 (n1) was lost: no heartbeat")
WAITING = SchedulerStatus("waiting", "Slurm job 5 pending: (Priority)")
ACTIVE, UNKNOWN, GONE = (
    SchedulerStatus("active", "RUNNING"),
    SchedulerStatus("unknown", "can't be asked"),
    SchedulerStatus("ended"),
)
NODE_FAIL = SchedulerStatus("ended", outcome="failed", cause="infra", reason="Slurm job 5: one of its nodes failed")
TIMEOUT = SchedulerStatus("ended", outcome="failed", cause="timeout", reason="Slurm job 5: its time limit was reached")
CANCELLED = SchedulerStatus("ended", outcome="cancelled", reason="Slurm job 5: it was cancelled by alice")


def final(verdict: Verdict, *, nodes: tuple[NodeState, ...] = NODES) -> RunState:
    return replace(ENDED, state=RunStatus(verdict.outcome.value), verdict=verdict, nodes=nodes)


@pytest.mark.parametrize("state", ["submitting", "pending", "starting"])
def test_a_job_that_waits_is_pending_and_says_why(state: str) -> None:
    found = joined(replace(LIVE, state=state), WAITING)
    assert (found.state, found.detail) == ("pending", WAITING.detail)


def test_a_job_whose_nodes_were_taken_is_restarting() -> None:
    assert joined(LIVE, WAITING).state == "restarting"
    assert joined(replace(LIVE, state=RunStatus.STOPPING), WAITING).state == "stopping"  # perhaps cancelled


def test_a_job_that_runs_without_a_word_is_starting() -> None:
    found = joined(replace(LIVE, state=RunStatus.PENDING), ACTIVE)
    assert (found.state, found.detail) == ("starting", "RUNNING")
    assert joined(LIVE, ACTIVE) == LIVE


def test_a_run_whose_job_is_suspended_says_so() -> None:
    found = joined(LIVE, SchedulerStatus("active", "Slurm job 5 is SUSPENDED on n1", is_suspended=True))
    assert (found.state, found.detail) == ("running", "Slurm job 5 is SUSPENDED on n1")


@pytest.mark.parametrize("said", [WAITING, ACTIVE, UNKNOWN])
@pytest.mark.parametrize("verdict", [PREEMPTED, LOST, Verdict(Outcome.FAILED, Cause.TIMEOUT)])
def test_no_verdict_while_the_job_may_go_on(said: SchedulerStatus, verdict: Verdict) -> None:
    found = joined(final(verdict), said)
    assert (found.state, found.verdict) == ("restarting", None)
    assert said.detail in found.detail


@pytest.mark.parametrize(
    "said", [WAITING, ACTIVE, UNKNOWN, GONE, NODE_FAIL, TIMEOUT, CANCELLED, SchedulerStatus("none")]
)
@pytest.mark.parametrize(
    "verdict", [SUCCESS, USER, Verdict(Outcome.CANCELLED), Verdict(Outcome.FAILED, Cause.NO_PROGRESS)]
)
def test_an_end_that_nothing_follows_stands(said: SchedulerStatus, verdict: Verdict) -> None:
    assert joined(final(verdict), said) == final(verdict)


def test_the_schedulers_reason_comes_first_where_it_ended_the_job() -> None:
    found = joined(final(LOST), NODE_FAIL)
    assert found.verdict is not None
    assert found.verdict.reason == "Slurm job 5: one of its nodes failed; node 1 (n1) was lost: no heartbeat"
    assert joined(final(LOST), GONE).verdict == LOST


def test_a_cancel_by_others_is_one() -> None:
    found = joined(final(PREEMPTED), CANCELLED)
    assert (found.state, found.verdict) == ("cancelled", Verdict(Outcome.CANCELLED, "", CANCELLED.reason, 1))


def test_a_job_whose_agents_never_spoke_has_the_schedulers_reason_alone() -> None:
    silent = tuple(replace(node, state=NodeStatus.LOST) for node in NODES)
    found = joined(final(Verdict(Outcome.FAILED, Cause.INFRA, "no agent ever reported"), nodes=silent), TIMEOUT)
    assert found.verdict == Verdict(Outcome.FAILED, Cause.TIMEOUT, TIMEOUT.reason)
    assert joined(replace(LIVE, nodes=silent), TIMEOUT).state == "failed"


def test_slurm_that_cannot_be_asked_ends_nothing() -> None:
    assert joined(LIVE, UNKNOWN) == replace(LIVE, detail="can't be asked")
    assert joined(LIVE, SchedulerStatus("none")) == LIVE


@pytest.mark.parametrize(
    ("end", "outcome", "cause"),
    [
        (JobEnd.FAILED, "failed", "infra"),
        (JobEnd.OTHER, "failed", "infra"),  # such as the loss of a node
        (JobEnd.TIMEOUT, "failed", "timeout"),
        (JobEnd.PREEMPTED, "failed", "preempted"),
        (JobEnd.CANCELLED, "cancelled", "infra"),
    ],
)
def test_the_end_of_a_job_has_an_outcome_and_a_cause(end: JobEnd, outcome: str, cause: str) -> None:
    assert SchedulerStatus.of_end(end, "why") == SchedulerStatus("ended", outcome=outcome, cause=cause, reason="why")


def test_the_runs_own_files_tell_the_rest_of_a_job_whose_script_ended_well() -> None:
    assert SchedulerStatus.of_end(JobEnd.COMPLETED, "why") == SchedulerStatus("ended")

"""What is to be done about a run, by what is known of it: a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.looking.evidence import Evidence, state_from
from orchestrator.outcome.restart import Relaunch
from orchestrator.outcome.scheduler import SchedulerStatus
from orchestrator.outcome.verdict import Cause, Outcome, Verdict
from orchestrator.protocol.events import Event
from orchestrator.runs.dependencies import Wait
from orchestrator.runs.record import RunRecord
from orchestrator.runs.state import HandleStatus, RunStatus
from orchestrator.supervisor.decide import Action, CleanUp, Drop, Finish, PassOnCancel, RecordLost, StartAgents, decide
from orchestrator.supervisor.observe import Observation
from tests import events as made

RECORD = RunRecord("r-234567", nnodes=2, hosts=("n0", "n1"), job_document={"retry": {"infra": 1}})
ALIVE, GONE = {0: True, 1: True}, {0: False, 1: False}


def event(kind: str, node: int | None = None, **values: Any) -> Event:
    return made.event(kind, node, time=5.0, **values)


def agents(start: int) -> tuple[Event, ...]:
    return tuple(event("agent_started", node, host=f"n{node}", start=start) for node in (0, 1))


AGENTS = agents(0)
GO = event("go", 0, attempt=0, world_size=2)
RUNNING = (event("submitted"), *AGENTS, GO, *(event("started", n, attempt=0, ranks=[n, n + 1]) for n in (0, 1)))
END = event("gang_ended", 0, outcome="succeeded", cause="", reason="", attempt=0)
LOST = event("gang_ended", 0, outcome="failed", cause="infra", reason="node 1 was lost", attempt=0)
FAILED = event("gang_ended", 0, outcome="failed", cause="user_error", reason="no", attempt=0)
PREEMPTED = event("gang_ended", 0, outcome="preempted", cause="preempted", reason="", attempt=0)
LEFT = tuple(event("agent_ended", node, outcome="succeeded") for node in (0, 1))
NO_HEARTBEAT = "node 1 lost node 0: no heartbeat for 10 s"
LOST_0 = event("gave_up", 1, outcome="failed", cause="infra", reason=NO_HEARTBEAT)
FIRST = Relaunch(1, 1, "infra", "node 1 was lost")
DECIDED = event("starting_again", start=1, attempt=1, cause="infra", reason="node 1 was lost", step=None)
CANCEL = event("cancel", now=False)
PASSED_ON = event("signal", 0, name="SIGTERM", cancelled=True)
WAITING, ENDED = (
    SchedulerStatus("waiting", "(Priority)"),
    SchedulerStatus("ended", outcome="failed", cause="infra", reason="NODE_FAIL"),
)
UNSATISFIABLE = Wait("b-333333, after which it was to start, failed", is_unsatisfiable=True)
SUCCESS = Verdict(Outcome.SUCCEEDED)


def seen(*events: Any, alive: Any = ALIVE, done: bool = True, scheduler: Any = None, relaunches: bool = False,
         **values: Any) -> Observation:  # fmt: skip
    """What is known of a run that was submitted whole, but for what is said otherwise."""
    evidence = Evidence(RECORD, events, alive, done, scheduler, relaunches)
    return replace(Observation(evidence, handle=HandleStatus.SUBMITTED), **values)


NOT_STARTED = "orch submit ended before it had started an agent"

TABLE: list[tuple[str, Observation, tuple[Action, ...]]] = [
    # How it goes its way.
    ("it runs", seen(*RUNNING), ()),
    ("one agent may still speak", seen(*RUNNING, END, LEFT[0], alive={0: False, 1: None}), ()),
    ("it is being started", seen(alive={}, handle=None, is_being_started=True), ()),
    ("it is queued by orch itself", seen(alive={}, handle=None, is_queued=True), ()),
    ("its first agent is on its way", seen(alive={}, handle=HandleStatus.INTENT, may_turn_up=True), ()),
    # Agents that will never report.
    ("its submit died", seen(alive={}, handle=None), (RecordLost(NOT_STARTED),)),
    ("its submit died between two agents", seen(AGENTS[0], alive={0: True}, handle=HandleStatus.INTENT),
     (RecordLost("orch submit ended before it had started 1 of 2 agents"),)),
    ("its submit died before all agents, of which none can be told elsewhere",
     seen(AGENTS[0], alive={0: True, 1: None}, handle=HandleStatus.INTENT),
     (RecordLost("orch submit ended before it had started 1 of 2 agents"),)),
    ("and what there was of it was ended, which is no loss to start again for",
     seen(AGENTS[0], event("found_lost", reason=NOT_STARTED), alive={0: False, 1: None},
          handle=HandleStatus.INTENT, relaunches=True),
     (Finish(Verdict(Outcome.FAILED, Cause.INFRA, NOT_STARTED), 5.0),)),
    ("its submit died before any agent", seen(alive={0: None, 1: None}, handle=HandleStatus.INTENT),
     (RecordLost(NOT_STARTED),)),
    ("all were started, and one's record is lost", seen(*AGENTS, alive={0: True}), ()),
    ("that was recorded", seen(event("found_lost", reason=NOT_STARTED), alive={}, handle=None),
     (Finish(Verdict(Outcome.FAILED, Cause.INFRA, NOT_STARTED), 5.0),)),
    ("its start was refused", seen(event("submit_failed", reason="no"), alive={}, handle=None),
     (Finish(Verdict(Outcome.FAILED, Cause.INFRA, "no"), None),)),
    ("it was dropped", seen(event("dropped", reason="no"), alive={}, handle=None),
     (Finish(Verdict(Outcome.CANCELLED, reason="no"), 5.0),)),
    # Its end.
    ("it ended well", seen(*RUNNING, END, *LEFT, alive=GONE), (Finish(SUCCESS, 5.0),)),
    ("all was said, and who lives can't be told", seen(*RUNNING, END, *LEFT, alive={0: None, 1: None}),
     (Finish(SUCCESS, 5.0),)),
    ("it is an end, however long ago", seen(*RUNNING, END, *LEFT, alive=GONE, is_quiet=True), (Finish(SUCCESS, 5.0),)),
    ("node 0 left long ago, node 1 did not", seen(*RUNNING, END, LEFT[0], alive={0: False, 1: True}, is_quiet=True),
     (CleanUp(),)),
    ("node 0 said nothing for long, but has not left", seen(*RUNNING, is_quiet=True), ()),
    ("nor when node 1 had given it up", seen(*RUNNING, LOST_0, alive={0: True, 1: False}, is_quiet=True), (CleanUp(),)),
    ("it may still say so", seen(*RUNNING, LOST_0, alive={0: True, 1: False}), ()),
    # A cancel whose command died.
    ("nobody told the agents", seen(*RUNNING, CANCEL, is_cancelled=True), (PassOnCancel(),)),
    ("they were sent another signal", seen(*RUNNING, CANCEL, event("signal", 0, cancelled=False),
     is_cancelled=True), (PassOnCancel(),)),
    ("they know", seen(*RUNNING, CANCEL, PASSED_ON, is_cancelled=True), ()),
    ("they have left since", seen(*RUNNING, CANCEL, END, *LEFT, alive=GONE, is_cancelled=True),
     (Finish(SUCCESS, 5.0),)),
    ("one of them hangs", seen(*RUNNING, CANCEL, END, LEFT[0], alive={0: False, 1: True}, is_cancelled=True,
     is_quiet=True), (PassOnCancel(), CleanUp())),
    # Another start of the agents.
    ("a node was lost", seen(*RUNNING, LOST, *LEFT, alive=GONE, relaunches=True), (StartAgents(FIRST, is_new=True),)),
    ("nobody may start it again", seen(*RUNNING, LOST, *LEFT, alive=GONE),
     (Finish(Verdict(Outcome.FAILED, Cause.INFRA, "node 1 was lost"), 5.0),)),
    ("it was decided", seen(*RUNNING, LOST, *LEFT, DECIDED, alive={}, relaunches=True, handle=HandleStatus.INTENT),
     (StartAgents(FIRST, is_new=False),)),
    ("its budget is used up", seen(DECIDED, *agents(1), GO, LOST, *LEFT, alive=GONE,
     relaunches=True), (Finish(Verdict(Outcome.FAILED, Cause.INFRA, "node 1 was lost", attempt=1), 5.0),)),
    ("it was given up before its next attempt", seen(*RUNNING, DECIDED, *agents(1),
     event("gave_up", 0, outcome="failed", cause="infra", reason=NO_HEARTBEAT), *LEFT, alive=GONE),
     (Finish(Verdict(Outcome.FAILED, Cause.INFRA, NO_HEARTBEAT, attempt=1), 5.0),)),
    ("a cancel came between two starts", seen(*RUNNING, LOST, *LEFT, CANCEL, alive=GONE, relaunches=True,
     is_cancelled=True), (Finish(Verdict(Outcome.CANCELLED), 5.0),)),
    ("a cancel came while another start waits for its machines", seen(*RUNNING, LOST, *LEFT, DECIDED, CANCEL, alive={},
     relaunches=True, is_cancelled=True), (Finish(Verdict(Outcome.CANCELLED, attempt=1), None),)),
    ("a cancel came while another start was at work", seen(*RUNNING, LOST, *LEFT, DECIDED, CANCEL, alive={0: None},
     relaunches=True, is_cancelled=True), (PassOnCancel(), StartAgents(replace(FIRST, step=None), is_new=False))),
    ("a cancel came after a program had failed", seen(*RUNNING, FAILED, *LEFT, CANCEL, alive=GONE, relaunches=True,
     is_cancelled=True), (Finish(Verdict(Outcome.FAILED, Cause.USER_ERROR, "no"), 5.0),)),
    # What a scheduler knows besides.
    ("its job waits", seen(event("submitted"), alive={0: None, 1: None}, scheduler=WAITING), ()),
    ("the run before it failed", seen(alive={0: None, 1: None}, scheduler=WAITING, wait=UNSATISFIABLE),
     (Drop(UNSATISFIABLE.reason),)),
    ("it began all the same", seen(*AGENTS, alive={0: None, 1: None}, scheduler=WAITING, wait=UNSATISFIABLE), ()),
    ("the run before it goes on", seen(alive={0: None, 1: None}, scheduler=WAITING, wait=Wait("waits for b")), ()),
    ("a job may wait long for its next start", seen(*RUNNING, LOST, *LEFT, alive={0: None, 1: None},
     scheduler=WAITING, is_quiet=True), ()),
    ("its job is over", seen(*RUNNING, alive=GONE, scheduler=ENDED),
     (Finish(Verdict(Outcome.FAILED, Cause.INFRA, "NODE_FAIL"), None),)),
    ("its job was cancelled between two starts", seen(*RUNNING, PREEMPTED, *LEFT, CANCEL, alive=GONE,
     scheduler=SchedulerStatus("ended", outcome="cancelled"), is_cancelled=True),
     (Finish(Verdict(Outcome.CANCELLED), 5.0),)),
]  # fmt: skip


@pytest.mark.parametrize(("known", "actions"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_what_is_done(known: Observation, actions: tuple[Action, ...]) -> None:
    assert decide(known) == actions
    assert decide(known) == decide(known)  # nothing but what is known matters


def test_whoever_looks_sees_what_is_decided() -> None:
    again = seen(*RUNNING, LOST, *LEFT, alive=GONE, relaunches=True).evidence
    assert (state_from(again).state, state_from(again).detail) == (RunStatus.RESTARTING, "start 1: node 1 was lost")
    assert state_from(seen(*RUNNING, END, *LEFT, alive=GONE).evidence).verdict == SUCCESS


def test_a_relaunch_that_has_no_point_is_the_verdict() -> None:
    starts = [event("starting_again", start=n, attempt=n, cause="infra", reason="node 1 was lost") for n in (1, 2, 3)]
    record = replace(RECORD, job_document={"retry": {"infra": None}})
    events = (*starts, *agents(3), GO, LOST, *LEFT)
    (finish,) = decide(Observation(Evidence(record, events, GONE, relaunches=True)))
    assert isinstance(finish, Finish)
    assert finish.verdict.cause == Cause.NO_PROGRESS
    assert finish.verdict.reason.startswith("3 starts in a row ended without a new checkpoint")

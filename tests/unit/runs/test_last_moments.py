"""A success is decided by the exit codes of the ranks: who dies between the last exit and the last record is no matter.

Each moment is a cut of the records of three nodes, together with what those write who are left. Only events, files and
the answers of the judging functions are named here, so that the tests outlive the code that judges.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.looking.evidence import Evidence
from orchestrator.node.agent.batch import has_succeeded, wants_another
from orchestrator.node.agent.slurm import run_slurm_agent
from orchestrator.outcome.scheduler import SchedulerStatus
from orchestrator.outcome.verdict import Outcome
from orchestrator.protocol.task import NodeTask, Program
from orchestrator.runs.record import RunRecord
from orchestrator.runs.state import HandleStatus
from orchestrator.supervisor.decide import Finish, StartAgents, decide
from orchestrator.supervisor.observe import Observation
from tests.events import typed

NODES = 3
Event = dict[str, Any]
BUDGET = {"infra": 3, "preempted": None}


def event(kind: str, node: int | None = None, **values: Any) -> Event:
    return {"kind": kind, "time": 5.0, **({} if node is None else {"node": node, "seq": 1}), **values}


def exited(rank: int, **how: Any) -> Event:
    values = {"code": 0, "signal": None, "attempt": 0, "stopped": False, **how}
    return event("rank_exit", rank // 2, rank=rank, **values)


def left(node: int, outcome: str = "succeeded") -> Event:
    return event("agent_ended", node, outcome=outcome, code=int(outcome != "succeeded"), swept=0, survivors=[])


def ended(outcome: str = "succeeded", cause: str = "", reason: str = "") -> Event:
    return event("gang_ended", 0, outcome=outcome, cause=cause, reason=reason, attempt=0, step=None)


def gave_up(node: int) -> list[Event]:
    reason = f"node {node} lost node 0: node 0 closed the connection"
    return [event("gave_up", node, outcome="failed", cause="infra", reason=reason), left(node, "failed")]


RUNNING = [
    event("submitted"),
    *(event("agent_started", node, host=f"n{node}", start=0, pid=1, started=1) for node in range(NODES)),
    *(event("joined", 0, joined=node, host=f"n{node}", nproc=2) for node in range(NODES)),
    event("go", 0, attempt=0, world_size=6, master_port=4242, nproc=[2, 2, 2], resume_from=None),
    *(event("started", n, attempt=0, ranks=[2 * n, 2 * n + 2], world_size=6, processes=2) for n in range(NODES)),
]
# Rank 0's marker is written between these two.
LAST_BUT_RANK_0 = [*RUNNING, *(exited(rank) for rank in (3, 4, 2, 5, 1))]
LAST = [*LAST_BUT_RANK_0, exited(0)]
SAID = [*LAST, ended()]
GONE = [*SAID, left(0)]
MOMENTS = {
    "rank 0's exit is marked, and not recorded": LAST_BUT_RANK_0,
    "the last exit is recorded": LAST,
    "the leader has said so": SAID,
    "node 0 has left": GONE,
    "node 1 has left too": [*GONE, left(1)],
}


def missing(events: list[Event], *nodes: int) -> list[int]:
    """The nodes, without those that have left already."""
    gone = {each["node"] for each in events if each["kind"] == "agent_ended"}
    return [node for node in nodes if node not in gone]


def without_node_0(events: list[Event]) -> list[Event]:
    if ended() in events:  # which the others have heard
        return [*events, *map(left, missing(events, 1, 2))]
    return [*events, *(said for node in missing(events, 1, 2) for said in gave_up(node))]


def without_node_1(events: list[Event]) -> list[Event]:
    if ended() in events:
        return [*events, *map(left, missing(events, 0, 2))]
    lost = [event("lost_node", 0, lost=1, host="n1", reason="closed"), ended("failed", "infra", "node 1 was lost")]
    return [*events, *lost, left(0, "failed"), left(2, "failed")]


def without_launcher(events: list[Event]) -> list[Event]:
    """Node 0's launcher dies, which its agent takes for the end of the attempt."""
    why = "node 0 (n0): the launcher was killed by SIGKILL"
    said = [event("launcher_gone", 0, code=-9, tail=[]), event("trouble", 0, reason=why, cause="infra")]
    failed = [] if ended() in events else [ended("failed", "infra", why)]
    outcome = "succeeded" if not failed else "failed"
    return [*events, *said, *failed, *(left(node, outcome) for node in missing(events, 0, 1, 2))]


DEATHS = {
    "node 0's agent": without_node_0,
    "node 1's agent": without_node_1,
    "all agents": lambda events: events,
    "a launcher": without_launcher,
}
ALL = [
    pytest.param(kill(cut), id=f"{who} dies when {when}")
    for when, cut in MOMENTS.items()
    for who, kill in DEATHS.items()
]
every_moment = pytest.mark.parametrize("events", ALL)


def seen(events: list[Event], *, done: bool = True, **values: Any) -> Observation:
    record = RunRecord("r-1", nnodes=NODES, hosts=("n0", "n1", "n2"), job_document={"retry": BUDGET})
    evidence = Evidence(record, tuple(typed(events)), dict.fromkeys(range(NODES), False), done, **values)
    return Observation(evidence, handle=HandleStatus.SUBMITTED)


def outcome_of(known: Observation) -> Outcome:
    """How the run has ended; asked twice, as a supervisor that dies is followed by another."""
    actions = decide(known)
    assert decide(known) == actions
    (finish,) = actions
    assert isinstance(finish, Finish)
    return finish.verdict.outcome


def test_these_are_twenty_moments() -> None:
    assert len(ALL) == 20


@every_moment
def test_nothing_runs_again_over_ssh(events: list[Event]) -> None:
    assert outcome_of(seen(events, relaunches=True)) is Outcome.SUCCEEDED


@every_moment
def test_a_run_of_this_machine_has_succeeded(events: list[Event]) -> None:
    assert outcome_of(seen(events)) is Outcome.SUCCEEDED


@every_moment
@pytest.mark.parametrize(
    "job",
    [
        SchedulerStatus("ended"),
        SchedulerStatus("ended", outcome="failed", cause="infra", reason="Slurm: NODE_FAIL"),
        SchedulerStatus("ended", outcome="failed", cause="timeout", reason="Slurm: TIMEOUT"),
        SchedulerStatus("ended", outcome="cancelled", reason="cancelled by Slurm"),
    ],
)
def test_whatever_slurm_says_of_the_job_it_has_succeeded(events: list[Event], job: SchedulerStatus) -> None:
    assert outcome_of(seen(events, scheduler=job)) is Outcome.SUCCEEDED


@every_moment
def test_the_term_that_srun_sends_for_a_dead_agent_takes_nothing_back(events: list[Event]) -> None:
    terms = [event("signal", node, name="SIGTERM", cancelled=False) for node in (1, 2)]
    assert outcome_of(seen([*events, *terms], scheduler=SchedulerStatus("ended"))) is Outcome.SUCCEEDED


@every_moment
def test_a_cancel_after_the_last_exit_takes_nothing_back(events: list[Event]) -> None:
    assert outcome_of(seen([*events, event("cancel", now=False)], relaunches=True)) is Outcome.SUCCEEDED


def task_of(folder: Path, node: int, **values: Any) -> NodeTask:
    return NodeTask(
        "r-1", node, NODES, ("n0", "n1", "n2"), 2, str(folder), "/code", Program("script", "t.py"), "fork", "gloo",
        "python3", (), (20000, 20000), retry=BUDGET, **values,
    )  # fmt: skip


def write_down(folder: Path, events: list[Event], attempt: int | None = 0) -> None:
    """Write what a shared folder holds by then."""
    if attempt is not None:
        (folder / "rank0.done").write_text(json.dumps({"attempt": attempt, "time": 5.0}))
    for node in range(NODES):
        path = folder / "nodes" / str(node)
        path.mkdir(parents=True)
        lines = [json.dumps(each) + "\n" for each in events if each.get("node") == node]
        (path / "events.jsonl").write_text("".join(lines) + '{"kind": "torn')
        (path / "task.json").write_text(json.dumps(task_of(folder, node).to_json()))


@every_moment
def test_no_agent_of_slurm_asks_for_another_start(tmp_path: Path, events: list[Event]) -> None:
    write_down(tmp_path, events)
    for node in range(NODES):
        own = tuple(each for each in events if each.get("node") == node)
        assert wants_another(task_of(tmp_path, node), typed(own), 1, "Slurm") is None


@every_moment
def test_a_job_that_slurm_starts_again_by_itself_runs_nothing(
    tmp_path: Path, events: list[Event], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_down(tmp_path, events)
    before = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    for name, value in {"RESTART_COUNT": "1", "STEP_NODELIST": "n[0-2]"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    for node in range(NODES):
        monkeypatch.setenv("SLURM_NODEID", str(node))
        assert run_slurm_agent(str(tmp_path)) == 0
    assert {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert "all ranks had ended well" in capsys.readouterr().err


# -- and no success is made up


STARTED_1 = event("started", 1, attempt=0, ranks=[2, 4], world_size=6, processes=2)
NOT_WELL = {
    "an exit is not recorded": [each for each in LAST if each != exited(4)],
    "a rank has failed": [*(each for each in LAST if each != exited(4)), exited(4, code=1)],
    "a rank was killed": [*(each for each in LAST if each != exited(4)), exited(4, code=None, signal="SIGKILL")],
    "a launcher was lost": [*(each for each in LAST if each != exited(4)), exited(4, signal="SIGKILL")],
    "orch had stopped a rank": [*(each for each in LAST if each != exited(4)), exited(4, stopped=True)],
    "a signal came before an exit": [*LAST_BUT_RANK_0, event("signal", 0, name="SIGTERM", cancelled=False), exited(0)],
    "a signal came before a node's only exit": [
        *RUNNING,
        *(exited(rank) for rank in (3, 4, 2, 5)),
        event("signal", 0, name="SIGTERM", cancelled=False),
        exited(1),
        exited(0),
    ],
    "the last checkpoint is on no disk": [*LAST_BUT_RANK_0, exited(0, unsaved="EIO")],
    "the exits are of another attempt": [*LAST, event("go", 0, attempt=1, world_size=6)],
    "a node's start is not recorded": [each for each in LAST if each != STARTED_1],
    "the ranks were never started": [each for each in LAST if each["kind"] != "go"],
}
not_well = pytest.mark.parametrize("events", NOT_WELL.values(), ids=NOT_WELL)


@not_well
def test_without_every_ranks_own_exit_it_runs_again(tmp_path: Path, events: list[Event]) -> None:
    events = without_node_0(events)
    (action,) = decide(seen(events, relaunches=True))
    assert isinstance(action, StartAgents)
    write_down(tmp_path, events)
    assert not has_succeeded(task_of(tmp_path, 1))


@pytest.mark.parametrize("marker", [None, 7])
def test_without_rank_0s_marker_of_this_attempt_it_runs_again(tmp_path: Path, marker: int | None) -> None:
    events = without_node_0(LAST)
    (action,) = decide(seen(events, done=False, relaunches=True))
    assert isinstance(action, StartAgents)
    write_down(tmp_path, events, marker)
    assert not has_succeeded(task_of(tmp_path, 1))
    own = tuple(each for each in events if each.get("node") == 1)
    assert wants_another(task_of(tmp_path, 1), typed(own), 1, "Slurm") is not None


def test_torchrun_has_one_exit_for_all_ranks_of_its_node() -> None:
    launchers = [exited(rank) for rank in (4, 2, 0)]
    running = [{**each, "processes": 1} if each["kind"] == "started" else each for each in RUNNING]
    assert outcome_of(seen(without_node_0([*running, *launchers]), relaunches=True)) is Outcome.SUCCEEDED
    (action,) = decide(seen(without_node_0([*running, *launchers[1:]]), relaunches=True))
    assert isinstance(action, StartAgents)


def test_an_agent_that_may_still_speak_is_waited_for() -> None:
    known = seen(LAST, relaunches=True)
    alive = {0: False, 1: False, 2: True}
    evidence = Evidence(known.evidence.record, known.evidence.events, alive, rank0_done=True, relaunches=True)
    assert decide(Observation(evidence, handle=HandleStatus.SUBMITTED)) == ()

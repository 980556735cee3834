"""The agent inside a scheduler's job: its nodes, its starts, its budgets, and when it asks for another."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.node.agent import batch
from orchestrator.node.agent.batch import (
    History,
    Place,
    continued,
    forbidden_start,
    history_of,
    placed,
    recorded,
    run_in_job,
    wants_another,
    word_path,
)
from orchestrator.node.agent.slurm import place_in, start_number
from orchestrator.node.system.event_log import EventLog
from orchestrator.outcome.restart import Refusal
from orchestrator.protocol.allocation import AllocationError
from orchestrator.protocol.events import Event
from orchestrator.protocol.messages import Again
from orchestrator.protocol.progress import Progress
from orchestrator.protocol.ranks import EXIT_REQUEUE
from orchestrator.protocol.task import NodeTask, Program
from tests.events import event


def task(**values: Any) -> NodeTask:
    shape = {"node_rank": 0, "nnodes": 3, "hosts": ("slurm node 0", "slurm node 1", "slurm node 2"), "run_dir": "/r"}
    rest = {"nproc": 2, "code_dir": "/c", "program": Program("script", "t.py"), "launcher": "fork", "backend": "gloo"}
    where = {
        "python": "python3",
        "leader_addrs": (),
        "port_range": (20000, 20000),
        "retry": {"infra": 3, "preempted": None},
    }
    return NodeTask(**{"run_id": "r-1", **shape, **rest, **where, **values})


def at(hosts: str, address: str = "", start: int = 0) -> Place:
    """Return the place of node 0 as Slurm's variables tell it."""
    told = {"SLURM_JOB_NODELIST": hosts, "SLURM_LAUNCH_NODE_IPADDR": address, "SLURM_NODEID": "0"}
    return place_in({**told, "SLURM_RESTART_COUNT": str(start)})


def test_the_allocation_fills_in_what_the_plan_left_open() -> None:
    found = placed(task(), at("n[4-6]", "10.0.0.4"))
    assert (found.hosts, found.leader_addrs, found.start) == (("n4", "n5", "n6"), ("10.0.0.4", "n4"), 0)
    away = placed(task(), at("n[4-6]", "127.0.1.1"))
    assert away.leader_addrs == ("n4",)  # the others can't dial that
    again = placed(task(nnodes=1, hosts=("x",)), at("n9", start=2))
    assert (again.leader_addrs, again.start, again.only_loopback) == (("127.0.0.1",), 2, True)


@pytest.mark.parametrize(("planned", "gpus", "nproc"), [(2, 0, 2), (2, 4, 2), (None, 0, 8), (None, 4, None)])
def test_a_node_without_gpu_whose_number_of_ranks_is_not_planned_has_one_for_each_slot(
    monkeypatch: pytest.MonkeyPatch, planned: int | None, gpus: int, nproc: int | None
) -> None:
    monkeypatch.setattr(batch, "gpus_of", lambda _: gpus)
    assert placed(task(nproc=planned), Place("sge", "17", 0, 0, ("n1", "n2", "n3"), slots=8)).nproc == nproc


@pytest.mark.parametrize(("kind", "title"), [("slurm", "Slurm"), ("sge", "Grid Engine"), ("pbs", "PBS")])
def test_another_number_of_nodes_is_an_error(kind: str, title: str) -> None:
    with pytest.raises(AllocationError, match=f"the plan has 3 nodes, but {title} gave 2: n1, n2"):
        placed(task(), Place(kind, "17", 0, 0, ("n1", "n2")))


def test_starts_are_slurms_restart_count() -> None:
    assert [start_number(environ) for environ in ({}, {"SLURM_RESTART_COUNT": "3"})] == [0, 3]


def again(start: int, step: int | None = None, cause: str = "preempted") -> Event:
    return event("starting_again", start=start, attempt=start, cause=cause, reason="", step=step)


def history(*events: Event) -> History:
    return History(events, None)


def test_attempts_go_on_where_the_last_start_left_them() -> None:
    assert continued(task(), history()).attempt == 0
    before = history(event("go", attempt=0, world_size=4), event("restart", attempt=1, cause="infra"))
    found = continued(task(), before)
    assert (found.attempt, found.retry) == (2, {"infra": 2, "preempted": None})
    assert continued(task(), history(*[again(1, cause="infra")] * 5)).retry["infra"] == 0


def test_starts_in_a_row_without_a_checkpoint_are_counted() -> None:
    assert history(again(1, 10), again(2, 20), again(3, 20)).stalled(Progress(20)) == 2
    assert history(again(1, 10), again(2, 20)).stalled(Progress(30)) == 0
    go = event("go", attempt=2, world_size=4)
    assert history(again(1), again(2), go, again(3)).stalled(Progress()) == 3


def ended(outcome: str, cause: str, reason: str = "", **progress: Any) -> Event:
    return event("gang_ended", attempt=0, outcome=outcome, cause=cause, reason=reason, **progress)


def preempted(**progress: Any) -> Event:
    return ended("preempted", "preempted", **progress)


GO = event("started", attempt=0, ranks=[0, 2])
PREEMPTED = preempted()
LOST = ended("failed", "infra", "node 2 (n6) was lost: no heartbeat")
USER = ended("failed", "user_error")
BEFORE = event("gave_up", outcome="preempted", cause="preempted", reason="SIGTERM before this node had joined")
UNREACHABLE = event("gave_up", outcome="failed", cause="infra", reason="can't reach node 0")
USR2 = event("signal", name="SIGUSR2", cancelled=False)


@pytest.mark.parametrize(
    ("events", "code", "cause"),
    [
        ([GO, PREEMPTED], EXIT_REQUEUE, "preempted"),
        ([GO, USR2, preempted(step=3)], EXIT_REQUEUE, "timeout"),
        ([GO, USR2, preempted(step=None, beat=3)], EXIT_REQUEUE, "timeout"),
        ([again(1, 3), GO, USR2, preempted(step=4)], EXIT_REQUEUE, "timeout"),
        ([again(1, 3), GO, USR2, preempted(step=3)], EXIT_REQUEUE, Refusal.NO_PROGRESS),
        ([GO, USR2, preempted(step=None)], EXIT_REQUEUE, Refusal.NO_PROGRESS),
        ([USR2, preempted(step=None)], EXIT_REQUEUE, "timeout"),  # it had not begun
        ([GO, LOST], 1, "infra"),
        ([BEFORE], EXIT_REQUEUE, "preempted"),
        ([UNREACHABLE], 1, None),  # nothing has worked yet: another start is not likely to
        ([GO, USER], 1, None),
        ([GO], 1, None),
        ([], 1, None),
    ],
)
def test_which_ends_ask_for_another_start(tmp_path: Path, events: list[Event], code: int, cause: str | None) -> None:
    budget = {"infra": 1, "preempted": None, "timeout": None}
    found = wants_another(task(run_dir=str(tmp_path), retry=budget), tuple(events), code, "Slurm")
    assert (found[0] if isinstance(found, tuple) else found) == cause
    (tmp_path / "cancel.json").write_text("{}")
    assert wants_another(task(run_dir=str(tmp_path), retry=budget), tuple(events), code, "Slurm") is None


def test_a_start_that_had_a_part_of_the_time_limit_may_end_there_without_a_gain(tmp_path: Path) -> None:
    left, events = (
        task(run_dir=str(tmp_path), retry={"timeout": None}),
        (again(1, 3), GO, USR2, preempted(step=3)),
    )
    assert wants_another(left, events, EXIT_REQUEUE, "Slurm") is Refusal.NO_PROGRESS
    found = wants_another(left, events, EXIT_REQUEUE, "Slurm", has_whole_limit=False)
    assert found == ("timeout", "its time limit was near")


@pytest.mark.parametrize(("seconds", "cause"), [(0.012, "preempted"), (60.0, "timeout"), (None, "timeout")])
def test_a_preemption_that_comes_with_the_warning_of_the_time_limit_is_one(
    tmp_path: Path, seconds: float | None, cause: str
) -> None:
    usr2 = event("signal", name="SIGUSR2", time=100.0)
    term = [] if seconds is None else [event("signal", name="SIGTERM", time=100.0 + seconds)]
    events = (GO, usr2, *term, preempted(step=3))
    found = wants_another(
        task(run_dir=str(tmp_path), retry={"preempted": None, "timeout": None}), events, EXIT_REQUEUE, "Slurm"
    )
    assert isinstance(found, tuple)
    assert found[0] == cause


def test_a_budget_that_is_used_up_asks_for_nothing(tmp_path: Path) -> None:
    restart = event("restart", attempt=1, cause="infra")
    left = task(run_dir=str(tmp_path), retry={"infra": 1, "preempted": 0})
    assert wants_another(left, (GO, LOST), 1, "Slurm") == ("infra", "node 2 (n6) was lost: no heartbeat")
    assert wants_another(left, (GO, restart, LOST), 1, "Slurm") is None
    assert wants_another(left, (GO, PREEMPTED), EXIT_REQUEUE, "Slurm") is None
    # The start that these events are of was taken off the budget as it began.
    assert wants_another(left, (again(1, cause="infra"), GO, LOST), 1, "Slurm") is not None


def test_a_start_that_retry_does_not_allow_ends_at_once(tmp_path: Path) -> None:
    by_itself, asked = History((again(1),), None), History((), Again("infra", "a node was lost"))
    for budget, allowed in ((None, True), (0, False), (1, False), (2, True)):
        found = forbidden_start(task(run_dir=str(tmp_path), retry={"preempted": budget}), by_itself, "Slurm")
        assert (found == "") is allowed
    none = task(run_dir=str(tmp_path), retry={"preempted": 0, "infra": 1})
    assert "retry.preempted is 0" in forbidden_start(none, History((), None), "Slurm")
    assert forbidden_start(none, asked, "Slurm") == ""
    (tmp_path / "cancel.json").write_text("{}")
    assert forbidden_start(none, by_itself, "Slurm") == ""


def test_a_start_that_retry_does_not_allow_is_recorded_before_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "nodes" / "0"
    folder.mkdir(parents=True)
    (folder / "task.json").write_text(json.dumps(task(run_dir=str(tmp_path), retry={"preempted": 0}).to_json()))
    assert run_in_job(str(tmp_path), lambda: at("n[4-6]", start=1)) == 1
    kinds = [each.kind for each in recorded(str(tmp_path), 0)]
    assert kinds == ["batch_job", "starting_again", "agent_started", "gave_up", "agent_ended"]


def test_history_is_node_0s_up_to_this_start(tmp_path: Path) -> None:
    folder = tmp_path / "nodes" / "0"
    folder.mkdir(parents=True)
    assert history_of(str(tmp_path), at("n1")) == History((), None)
    lines = [json.dumps(each.to_json()) for each in (again(1, 5), event("batch_job", start=2), again(2, 5))]
    (folder / "events.jsonl").write_text("\n".join([lines[0], "{torn", *lines[1:]]) + "\n")
    (tmp_path / "slurm").mkdir()
    Path(word_path(str(tmp_path), "slurm", 1)).write_text('{"cause": "timeout", "reason": "its time limit was near"}')
    found = history_of(str(tmp_path), at("n1", start=2))
    assert found.events == (again(1, 5),)
    assert found.word == Again("timeout", "its time limit was near")


@pytest.mark.parametrize(
    ("node", "step", "gives_up", "asks"), [(0, None, True, False), (1, None, False, False), (0, 3, False, True)]
)
def test_node_0_records_that_another_start_would_be_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: int, step: int | None, gives_up: bool, asks: bool
) -> None:
    folder = tmp_path / f"nodes/{node}"
    folder.mkdir(parents=True)
    (tmp_path / "slurm").mkdir()
    own = task(run_dir=str(tmp_path), code_dir=str(tmp_path), node_rank=node, retry={"timeout": None})
    (folder / "task.json").write_text(json.dumps(own.to_json()))

    async def until_the_time_limit(_: NodeTask, on_outcome: Any) -> int:
        log = EventLog(str(folder / "events.jsonl"), node)
        for each in (GO, USR2, preempted(step=step)):
            log.write(each)
        on_outcome(SimpleNamespace(events=log), EXIT_REQUEUE)
        log.close()
        return EXIT_REQUEUE

    monkeypatch.setattr(batch, "_run", until_the_time_limit)
    assert run_in_job(str(tmp_path), lambda: Place("slurm", "17", 0, node, ("n4", "n5", "n6"))) == EXIT_REQUEUE
    assert ('"gave_up"' in (folder / "events.jsonl").read_text()) is gives_up
    assert Path(word_path(str(tmp_path), "slurm", 0)).exists() is asks

"""A run elsewhere is watched by one mechanism, whichever machine has its parts: its logs, its losses, its end."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from orchestrator.backends.mirror import watching as mirror
from orchestrator.backends.mirror.watching import (
    FIRST_PAUSE,
    Follower,
    RunWatcher,
    Source,
    Update,
    finish,
    nodes_ended,
    watching_logs,
)
from orchestrator.errors import BackendError, JobOverError, StoreError
from orchestrator.protocol.events import Cancel, OutputsLeft
from orchestrator.runs.files.logs import Selection
from orchestrator.runs.reducer import left_outputs
from orchestrator.runs.store import RunDir
from orchestrator.transport.machine import Machine
from tests.machines import FakeMachine
from tests.patience import PATIENCE


def end_of(node: int) -> str:
    return json.dumps({"kind": "agent_ended", "node": node, "outcome": "succeeded"}) + "\n"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run of two nodes, whose folder elsewhere has what they wrote."""
    here, there = RunDir(tmp_path / "here" / "r-1"), tmp_path / "orch" / "runs" / "r-1"
    here.path.mkdir(parents=True)
    here.write("run.json", {"nnodes": 2, "profile": {"workdir": str(tmp_path / "orch")}})
    for node in (0, 1):
        (there / f"nodes/{node}/attempt_0").mkdir(parents=True)
        (there / f"nodes/{node}/attempt_0/rank_{node}.log").write_text(f"rank {node}\n")
        (there / f"nodes/{node}/events.jsonl").write_text(end_of(node))
    return here


def told_to_go(run: RunDir, *nproc: int) -> None:
    """It is known here that so many ranks were started on each node."""
    run.node(0).mkdir(parents=True, exist_ok=True)
    with (run.node(0) / "events.jsonl").open("a") as file:
        told = {"kind": "go", "node": 0, "attempt": 0, "world_size": sum(nproc), "nproc": nproc}
        file.write(json.dumps(told) + "\n")


def here() -> Machine:
    return FakeMachine()


def out_of_reach() -> Machine:
    raise BackendError("n2: no route", transient=True)


def machine(name: str, *nodes: int, session: Callable[[], Machine] = here, is_vital: bool = False) -> Source:
    return Source(name, nodes, session, is_vital)


def left_behind(run: RunDir) -> list[tuple[int, str, str]]:
    return [(each["left"], each["host"], each["reason"]) for each in run.event_lines() if each["kind"] == "left_behind"]


@pytest.mark.parametrize("sources", [[machine("n1", 0), machine("n2", 1)], [machine("login", 0, 1, is_vital=True)]])
def test_after_the_end_all_is_here_and_nothing_there(run: RunDir, tmp_path: Path, sources: list[Source]) -> None:
    finish(run, sources)
    assert [(run.node(node) / f"attempt_0/rank_{node}.log").read_text() for node in (0, 1)] == ["rank 0\n", "rank 1\n"]
    assert not (tmp_path / "orch/runs/r-1").exists()
    assert left_behind(run) == []


def test_a_machine_that_is_lost_keeps_its_folder_and_is_named(run: RunDir) -> None:
    finish(run, [machine("n1", 0), machine("n2", 1, session=out_of_reach)])
    assert left_behind(run) == [(1, "n2", "n2: no route")]


def heard_its_end(run: RunDir, *nodes: int) -> None:
    for node in nodes:
        run.node(node).mkdir(parents=True, exist_ok=True)
        (run.node(node) / "events.jsonl").write_text(end_of(node))


@pytest.mark.parametrize("broken", ["listing", "logs", "removal"])
def test_a_connection_that_breaks_in_the_last_copy_is_tried_again(run: RunDir, tmp_path: Path, broken: str) -> None:
    """Nothing is removed before all is here, and no verdict may be written before."""
    heard_its_end(run, 0, 1)
    (tmp_path / "orch/runs/r-1/outputs").mkdir()
    (tmp_path / "orch/runs/r-1/outputs/out.txt").write_text("an output")
    verb = {"listing": "list_outputs", "logs": "poll_changes", "removal": "remove"}[broken]
    torn = FakeMachine("n2", {verb: BackendError("n2: the connection was closed", transient=True)})
    sources = [machine("n1", 0), machine("n2", 1, session=lambda: torn)]
    if broken == "removal":  # all is here, so nobody waits
        finish(run, sources, patience=60.0)
        assert (left_outputs(run.events()), len(left_behind(run))) == ((), 1)
        return
    for _ in range(2):
        with pytest.raises(BackendError, match="the connection was closed"):
            finish(run, sources, patience=60.0)
    assert (tmp_path / "orch/runs/r-1").exists()
    assert [each.node for each in left_outputs(run.events())] == [1]
    assert len(left_behind(run)) == 1
    finish(run, [machine("n1", 0), machine("n2", 1)], patience=60.0)
    assert (run.path / "outputs/out.txt").read_text() == "an output"
    assert left_outputs(run.events()) == ()
    assert not (tmp_path / "orch/runs/r-1").exists()


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        (BackendError("n2: can't be reached: Connection refused"), True),  # its sshd starts again
        (BackendError("n2: no such host: Temporary failure in name resolution"), True),
        (JobOverError("n2: Slurm's job 7 has ended"), False),
    ],
)
def test_a_machine_that_was_reached_before_may_come_back_unless_its_job_is_over(
    run: RunDir, error: BackendError, waits: bool
) -> None:
    def session() -> Machine:
        raise error

    heard_its_end(run, 0, 1)
    with pytest.raises(BackendError) if waits else contextlib.nullcontext():
        finish(run, [machine("n1", 0), machine("n2", 1, session=session)], patience=60.0)
    assert len(left_behind(run)) == 1


@pytest.mark.parametrize("ends", ["time", "cancel"])
def test_the_wait_for_files_ends_with_its_time_or_by_a_cancel(run: RunDir, ends: str, monkeypatch) -> None:
    heard_its_end(run, 0, 1)
    sources = [machine("n1", 0), machine("n2", 1, session=out_of_reach)]
    with pytest.raises(BackendError, match="no route"):
        finish(run, sources, patience=60.0)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + (61.0 if ends == "time" else 1.0))
    if ends == "cancel":
        run.append_event(Cancel(now=False))
    finish(run, sources, patience=60.0)
    assert {each[:2] for each in left_behind(run)} == {(1, "n2")}
    assert (run.node(0) / "attempt_0/rank_0.log").exists()


def test_for_a_run_that_was_cancelled_before_nobody_waits(run: RunDir) -> None:
    heard_its_end(run, 0, 1)
    run.append_event(Cancel(now=False))
    finish(run, [machine("n1", 0), machine("n2", 1, session=out_of_reach)], patience=60.0)
    assert {each[:2] for each in left_behind(run)} == {(1, "n2")}


def test_a_node_of_which_only_some_outputs_are_known_to_be_left_is_waited_for(run: RunDir) -> None:
    heard_its_end(run, 0, 1)
    run.append_event(OutputsLeft(left=1, host="n2", files=2, bytes=9))
    for _ in range(2):
        with pytest.raises(BackendError, match="no route"):
            finish(run, [machine("n1", 0), machine("n2", 1, session=out_of_reach)], patience=60.0)
    assert left_behind(run) == [(1, "n2", "n2: no route")]


def test_nobody_waits_for_the_files_of_a_node_that_was_lost_before_its_end(run: RunDir) -> None:
    heard_its_end(run, 0)
    finish(run, [machine("n1", 0), machine("n2", 1, session=out_of_reach)], patience=60.0)
    assert left_behind(run) == [(1, "n2", "n2: no route")]


def test_a_node_of_an_ended_gang_has_ended_unless_it_was_lost_or_never_joined(run: RunDir) -> None:
    run.node(0).mkdir(parents=True)
    told = [{"kind": "joined", "joined": node} for node in (0, 1, 2)] + [{"kind": "lost_node", "lost": 2}]
    ended = {"kind": "gang_ended", "attempt": 0, "outcome": "failed", "cause": "user_error", "reason": ""}
    lines = [json.dumps({**each, "node": 0}) + "\n" for each in (*told, ended)]
    (run.node(0) / "events.jsonl").write_text("".join(lines[:-1]))
    assert nodes_ended(run) == set()
    (run.node(0) / "events.jsonl").write_text("".join(lines))
    assert nodes_ended(run) == {0, 1}


def test_a_machine_that_was_lost_before_is_not_asked(run: RunDir) -> None:
    finish(run, [machine("n1", 0), machine("n2", 1)], unreachable={1})
    assert not run.node(1).exists()
    assert left_behind(run) == [(1, "n2", "n2: out of reach")]


def test_without_the_machine_that_tells_the_end_nothing_is_concluded(run: RunDir, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="no route"):
        finish(run, [machine("login", 0, 1, session=out_of_reach, is_vital=True)])
    assert left_behind(run) == []
    assert (tmp_path / "orch/runs/r-1").exists()


def test_a_run_that_has_its_verdict_is_not_looked_at_again(run: RunDir) -> None:
    run.write("verdict.json", {})
    finish(run, [machine("login", 0, 1, session=out_of_reach, is_vital=True)])
    assert left_behind(run) == []


@pytest.mark.parametrize("sources", [[machine("n1", 0), machine("n2", 1)], [machine("login", 0, 1)]])
def test_chosen_logs_come_at_least_once_and_nothing_else(run: RunDir, sources: list[Source]) -> None:
    told_to_go(run, 1, 1)
    with watching_logs(run, sources, Selection(1)):
        pass
    assert [str(path.relative_to(run.path)) for path in run.path.rglob("*.log")] == ["nodes/1/attempt_0/rank_1.log"]


def test_only_machines_that_have_chosen_logs_are_asked_and_after_a_restart_others(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "POLL_SECONDS", 0.01)
    asked, came = list[str](), threading.Semaphore(0)

    def session(name: str) -> Machine:
        if name not in asked:
            asked.append(name)
            came.release()
        return here()

    sources = [machine(name, node, session=partial(session, name)) for node, name in enumerate(("n1", "n2", "n3"))]
    told_to_go(run, 2, 2)
    with watching_logs(run, sources, Selection(2)):
        assert came.acquire(timeout=PATIENCE)
        assert asked == ["n2"]
        told_to_go(run, 1, 1, 1)  # the next attempt
        assert came.acquire(timeout=PATIENCE)
    assert asked == ["n2", "n3"]
    with watching_logs(run, sources, Selection(node=0)):
        pass
    assert asked == ["n2", "n3", "n1"]


def test_where_it_is_not_known_here_that_the_ranks_go_node_0_is_asked_first(run: RunDir, tmp_path: Path) -> None:
    """The supervisor was killed, or the laptop shut, before that word was here."""
    sources = [machine("n1", 0), machine("n2", 1), machine("n3", 2, session=pytest.fail)]
    with watching_logs(run, sources, Selection(1)):
        pass
    assert not run.node(1).exists()
    with (tmp_path / "orch/runs/r-1/nodes/0/events.jsonl").open("a") as file:
        file.write('{"kind": "go", "node": 0, "attempt": 0, "world_size": 3, "nproc": [1, 1, 1]}\n')
    with watching_logs(run, sources, Selection(1)):
        pass
    assert (run.node(1) / "attempt_0/rank_1.log").exists()


def test_where_node_0_is_out_of_reach_then_any_machine_may_have_it(run: RunDir) -> None:
    with watching_logs(run, [machine("n1", 0, session=out_of_reach), machine("n2", 1)], Selection(1)):
        pass
    assert (run.node(1) / "attempt_0/rank_1.log").exists()


def test_where_node_0_has_not_said_how_many_ranks_each_node_has_all_are_asked(run: RunDir) -> None:
    (run.node(0)).mkdir(parents=True)
    (run.node(0) / "events.jsonl").write_text('{"kind": "go", "node": 0, "attempt": 0, "world_size": 2}\n')
    with watching_logs(run, [machine("n1", 0), machine("n2", 1)], Selection(1)):
        pass
    assert (run.node(1) / "attempt_0/rank_1.log").exists()


def test_nobody_waits_for_who_looks_at_another_log(run: RunDir) -> None:
    """A person may follow rank 1's log for hours; a relaunch copies logs, and another person looks at rank 0's."""
    sources = [machine("n1", 0), machine("n2", 1)]
    told_to_go(run, 1, 1)
    with watching_logs(run, sources, Selection(1)):
        with watching_logs(run, sources, Selection(everything=True)):
            pass
        assert (run.node(0) / "attempt_0/rank_0.log").exists()


class Returning(Follower):
    """Follows a machine that is out of reach for so many looks; then it has one checkpoint, and the watching ends."""

    def __init__(self, losses: int) -> None:
        self.left, self.watcher, self.lost = losses, list[RunWatcher](), list[str]()

    def update(self) -> Update:
        if self.left:
            self.left -= 1
            raise BackendError("n1: no route", transient=True)
        self.watcher[0].ended.set()
        return Update(["step_00000001"])

    def record_loss(self, error: BackendError) -> None:
        self.lost.append(error.message)

    def has_moved(self) -> bool:
        return True


def test_a_machine_out_of_reach_is_looked_at_again_until_it_answers(run: RunDir, monkeypatch) -> None:
    watcher, pauses, follower = RunWatcher(run, [], list), [], Returning(3)
    follower.watcher.append(watcher)
    monkeypatch.setattr(watcher, "rest", lambda _, seconds: pauses.append(seconds))
    watcher.follow(follower)
    assert follower.lost == ["n1: no route"] * 3
    assert pauses == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE, 0.0]
    assert watcher.steps == ["step_00000001"]
    watcher.stop()


@pytest.mark.parametrize("is_news", [True, False])
def test_the_run_is_looked_at_again_where_a_look_has_brought_news(run: RunDir, is_news: bool) -> None:
    watcher = RunWatcher(run, [], list)

    class Quiet(Returning):
        def update(self) -> Update:
            watcher.ended.set()
            return Update(is_news=is_news)

    watcher.follow(Quiet(0))
    assert watcher.changed.is_set() == is_news
    watcher.stop()


class Odd(Returning):
    """What goes wrong is of no kind that anybody thought of, and can't even be recorded at first."""

    def update(self) -> Update:
        if self.left:
            self.left -= 1
            raise (ValueError("embedded null byte"), OSError(28, "No space left on device"))[self.left % 2]
        return super().update()

    def record_loss(self, error: BackendError) -> None:
        if self.left > 1:
            raise StoreError("seen.json can't be written: No space left on device")
        super().record_loss(error)


def test_nothing_that_a_machine_or_a_full_disk_does_ends_the_thread(run: RunDir, monkeypatch) -> None:
    watcher, pauses, follower = RunWatcher(run, [], list), [], Odd(3)
    follower.watcher.append(watcher)
    monkeypatch.setattr(watcher, "rest", lambda _, seconds: pauses.append(seconds))
    watcher.follow(follower)
    assert pauses == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE, 0.0]
    assert follower.lost == [
        "the data that the node sent could not be stored: OSError: [Errno 28] No space left on device",
        "the data that the node sent could not be stored: ValueError: embedded null byte",
    ]
    assert watcher.steps == ["step_00000001"]
    watcher.stop()

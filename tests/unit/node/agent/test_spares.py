"""The starts of a Slurm job with spares: their numbers, their nodes, and when Slurm has to queue the job again."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.node.agent import spares
from orchestrator.node.agent.batch import History, Place
from orchestrator.node.agent.slurm import START, place_in
from orchestrator.node.agent.spares import Start, argv_of, first_number, following
from orchestrator.outcome.requeue import overdrawn
from orchestrator.protocol.events import StartingAgain, read_event, read_events
from orchestrator.protocol.messages import Again
from tests.patience import PATIENCE

NODES = ["n1", "n2", "n3", "n4", "n5"]  # three of the run, and two spares
INFRA = Again("infra", "a node was lost")


def begun(run: Path, *events: dict[str, Any], start: int = 0) -> None:
    """Write node 0's record of its newest start."""
    folder = run / "nodes" / "0"
    folder.mkdir(parents=True, exist_ok=True)
    first = {"kind": "agent_started", "node": 0, **({"start": start} if start else {})}
    lines = [{"kind": "batch_job", "node": 0, "start": start}, first, *events]
    with (folder / "events.jsonl").open("a") as log:
        log.writelines(json.dumps(line) + "\n" for line in lines)


def lost(node: int, **more: Any) -> dict[str, Any]:
    return {"kind": "lost_node", "node": 0, "lost": node, **more}


def failed(node: int) -> dict[str, Any]:
    """Return the end of an attempt by a node's GPU."""
    error = {"type": "RuntimeError", "message": "CUDA error: uncorrectable ECC error encountered"}
    culprit = {"node": node, "rank": node, "code": 1, "error": error}
    return {"kind": "attempt_failed", "node": 0, "attempt": 0, "cause": "infra", "culprit": culprit}


@pytest.mark.parametrize(
    ("events", "dead", "hosts"),
    [
        ([], "", "n1 n2 n3"),  # node 0's agent was killed, and no machine is lost
        ([lost(1)], "n2", "n1 n3 n4"),
        ([lost(2)], "n3 n4", "n1 n2 n5"),  # the first spare is lost too
        ([lost(1), lost(2)], "n2 n3", "n1 n4 n5"),
        ([lost(1)], "n4 n5", "n1 n2 n3"),  # its agent alone was killed
        ([lost(1)], "n2 n4 n5", ""),
        ([lost(1), lost(2)], "n2 n3 n4", ""),
        ([lost(1, slept=12.0)], "", "n1 n2 n3"),  # it has left node 0, which was stopped
        ([failed(2)], "", "n1 n2 n4"),
        ([failed(0)], "", "n1 n2 n3"),  # the first node runs the batch script
    ],
)
def test_the_nodes_of_the_next_start(tmp_path: Path, events: list[dict[str, Any]], dead: str, hosts: str) -> None:
    begun(tmp_path, *events)
    start = Start(str(tmp_path), 0, ("n1", "n2", "n3"))
    found = following(start, NODES, INFRA, lambda host: host not in dead.split())
    assert (found and (found.number, " ".join(found.hosts))) == ((1, hosts) if hosts else None)


def test_a_node_that_was_lost_is_used_again_after_all_spares(tmp_path: Path) -> None:
    begun(tmp_path, lost(1), start=2)
    asked: list[str] = []
    start = Start(str(tmp_path), 2, ("n1", "n3", "n4"), former=("n2",))
    found = following(start, NODES, INFRA, lambda host: bool(asked.append(host)) or host == "n2")
    assert found == Start(str(tmp_path), 3, ("n1", "n2", "n4"), former=("n2", "n3"))
    assert asked == ["n5", "n2"]


@pytest.mark.parametrize("cause", ["preempted", "timeout"])
def test_an_end_of_the_job_itself_is_left_to_slurm(tmp_path: Path, cause: str) -> None:
    begun(tmp_path)
    assert following(Start(str(tmp_path), 0, ("n1", "n2")), NODES, Again(cause), lambda host: True) is None


@pytest.mark.parametrize(
    ("has_vanished", "is_cancelled", "word"), [(True, False, INFRA), (True, True, None), (False, False, None)]
)
def test_a_request_that_another_machine_writes_is_waited_for_unless_none_can_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_vanished: bool, is_cancelled: bool, word: Again | None
) -> None:
    shown = iter([None, None, INFRA])
    monkeypatch.setattr(spares, "read_word", lambda _: next(shown))
    monkeypatch.setattr(spares, "SHOWN_SECONDS", PATIENCE)
    monkeypatch.setattr(spares, "LOOK_SECONDS", 0.0)
    if has_vanished:
        begun(tmp_path)
    if is_cancelled:
        (tmp_path / "cancel.json").write_text("{}")
    assert spares._request_after(Start(str(tmp_path), 0, ("n1", "n2"))) == word


def test_srun_gets_the_nodes_and_a_log_of_the_start() -> None:
    argv = argv_of(Start("/r", 3, ("n1", "n4")), "%j", ("srun", "--overlap", "python"))
    where = ["--nodes=2", "--ntasks=2", "--nodelist=n1,n4", "--output=/r/slurm/agent.%j.3.%t.log"]
    assert argv == ["srun", *where, "--overlap", "python"]


def test_no_two_starts_have_one_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_number(str(tmp_path)) == 0
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert first_number(str(tmp_path)) == 1
    begun(tmp_path, start=3)
    assert first_number(str(tmp_path)) == 4
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "again.4").write_text("{}")  # node 0's agent could write nothing
    assert first_number(str(tmp_path)) == 5


def test_an_agent_knows_its_start_and_its_job() -> None:
    told = {"SLURM_STEP_NODELIST": "n[1,4]", "SLURM_NODEID": "1", "SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "1"}
    place = place_in({**told, START: "3"})
    assert (place.start, place.requeues, place.hosts) == (3, 1, ("n1", "n4"))
    place = place_in(told)
    assert (place.start, place.requeues) == (1, None)


def test_what_a_start_has_replaced() -> None:
    hosts = {0: ["n1", "n2", "n3"], 1: ["n1", "n3", "n4"]}
    jobs = [{"kind": "batch_job", "start": at, "job": "17", "hosts": hosts[at], "requeues": 0} for at in hosts]
    history = History(tuple(read_events([jobs[0], lost(1, host="n2", reason="no heartbeat for 10 s")])), INFRA)
    place = Place("slurm", "17", 1, 0, ("n1", "n3", "n4"), requeues=0)
    (found,) = history.replaced(place)
    assert (found.start, found.lost, found.host, found.by, found.why) == (1, 1, "n2", "n4", "no heartbeat for 10 s")
    assert history.last_in_job(place) == read_event(jobs[0])
    requeued = Place("slurm", "17", 1, 0, ("n7", "n8", "n9"), requeues=1)
    assert (history.replaced(requeued), history.last_in_job(requeued)) == ([], None)
    plain = Place("slurm", "17", 1, 0, ("n7", "n8", "n9"))
    assert (history.replaced(plain), history.last_in_job(plain)) == ([], None)


def test_a_start_without_a_budget_ends_at_once() -> None:
    again = [StartingAgain(1, 1, "infra", "lost")] * 2
    assert overdrawn({"infra": 1}, again, INFRA) == "a node was lost"
    assert overdrawn({"infra": 2}, again, INFRA) == ""
    assert overdrawn({"infra": None}, again, INFRA) == ""


@pytest.mark.parametrize(
    ("end", "code"),
    [([{"kind": "agent_ended", "node": 0, "outcome": "failed", "code": 3}], 3),
     ([{"kind": "agent_ended", "node": 0, "outcome": "failed"}], 1),
     ([], 1)],
)  # fmt: skip
def test_an_srun_that_waits_for_a_lost_node_is_ended_with_the_code_of_node_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: list[dict[str, Any]], code: int
) -> None:
    signals: list[int] = []
    srun = SimpleNamespace(poll=lambda: None, send_signal=signals.append)
    monkeypatch.setattr(spares.subprocess, "Popen", lambda *_, **__: srun)
    monkeypatch.setattr(spares, "LEAVING_SECONDS", -1.0)
    begun(tmp_path, lost(1), *end)
    start = Start(str(tmp_path), 0, ("n1", "n2"))
    Path(start.word).parent.mkdir()
    Path(start.word).touch()
    assert spares._run(start, ["srun"]) == code
    assert signals == [signal.SIGTERM]

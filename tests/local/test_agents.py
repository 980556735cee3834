"""Agents started by hand: what they say when their gang never comes together."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.protocol.gang import GANG_PORT_RANGE
from orchestrator.protocol.layout import node_folder
from orchestrator.protocol.task import NodeTask, Program
from orchestrator.runs.store import read_lines
from orchestrator.transport.credentials import new_credentials
from orchestrator.transport.node_archive import node_archive
from tests.patience import PATIENCE
from tests.testbed.machine import wait_until

CREDENTIALS = new_credentials()


def start_agent(task: NodeTask, python: str = sys.executable) -> subprocess.Popen[bytes]:
    folder = Path(node_folder(task.run_dir, task.node_rank))
    folder.mkdir(parents=True)
    archive = Path(task.run_dir, "node.pyz")
    if not archive.exists():  # another agent of this folder may be reading it
        archive.write_bytes(node_archive())
    (folder / "task.json").write_text(json.dumps(task.to_json()))
    with open(folder / "agent.log", "wb") as log:
        return subprocess.Popen([python, f"{task.run_dir}/node.pyz", "agent", str(folder / "task.json")], stderr=log)


def task_in(folder: Path, **values: object) -> NodeTask:
    task = NodeTask(
        run_id="by-hand",
        node_rank=0,
        nnodes=2,
        hosts=("n1", "n2"),
        nproc=1,
        run_dir=str(folder),
        code_dir=str(folder),
        program=Program("command", "true"),
        launcher="auto",
        backend="auto",
        python=sys.executable,
        leader_addrs=("127.0.0.1",),
        port_range=GANG_PORT_RANGE,
        credentials=CREDENTIALS,
        join_timeout=2.0,
    )
    return replace(task, **values)  # type: ignore[arg-type]


def events(task: NodeTask, kind: str) -> list[dict[str, object]]:
    path = Path(node_folder(task.run_dir, task.node_rank), "events.jsonl")
    return [event for event in read_lines(path) if event["kind"] == kind]


def end_of(agent: subprocess.Popen[bytes]) -> int:
    try:
        return agent.wait(timeout=PATIENCE)
    finally:
        agent.kill()
        agent.wait()


def test_the_leader_names_the_node_that_is_missing(tmp_path: Path) -> None:
    task = task_in(tmp_path)
    assert end_of(start_agent(task)) == 1
    assert events(task, "gang_ended")[0]["reason"] == "node 1 (n2) did not join within 2 s"


def test_a_member_names_the_way_that_does_not_work(tmp_path: Path) -> None:
    task = task_in(tmp_path, node_rank=1)
    assert end_of(start_agent(task)) == 1
    reason = str(events(task, "gave_up")[0]["reason"])
    assert "can't reach node 0 (n1): 127.0.0.1: refused (16 ports from " in reason


@pytest.mark.full(
    "tests/unit/node/agent/test_tls.py::test_another_certificate_is_refused_on_both_sides",
    "tests/local/test_attacks.py::test_seventy_idle_strangers_and_garbage_at_every_port_change_nothing",
)
def test_another_runs_agent_does_not_get_in(tmp_path: Path) -> None:
    ports = (20_000, 20_003)  # the same ones, whatever the credentials
    leader = task_in(tmp_path / "a", join_timeout=10.0, port_range=ports)
    stranger = task_in(tmp_path / "b", node_rank=1, credentials=new_credentials(), port_range=ports, join_timeout=4.0)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    agents = [start_agent(leader)]
    wait_until(lambda: events(leader, "listening"), "the leader")
    agents.append(start_agent(stranger))
    assert [end_of(agent) for agent in agents] == [1, 1]
    assert [event["joined"] for event in events(leader, "joined")] == [0]
    assert events(stranger, "reached_leader") == []
    assert "the program that listens at this address does not have this run's certificate" in str(
        events(stranger, "gave_up")[0]["reason"]
    )
    assert events(leader, "strangers")[0]["counts"] == {"127.0.0.1": 1}
    missing = str(events(leader, "gang_ended")[0]["reason"])
    assert missing.startswith("node 1 (n2) did not join within 10 s; ")
    assert missing.endswith(" from 127.0.0.1 could not prove to belong to this run")


def test_the_task_file_with_its_key_is_removed_at_once(tmp_path: Path) -> None:
    tasks = [task_in(tmp_path, node_rank=node, join_timeout=60.0) for node in range(2)]
    assert [end_of(agent) for agent in [start_agent(task) for task in tasks]] == [0, 0]
    assert not any(Path(node_folder(task.run_dir, task.node_rank), "task.json").exists() for task in tasks)
    key = CREDENTIALS.splitlines()[-3].encode()
    assert not any(key in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_agents_of_an_older_python_form_a_gang(tmp_path: Path) -> None:
    """What a node has is not what these tests have: asyncio's TLS was another one before Python 3.11."""
    for python in ("python3.9", "python3.10"):
        try:
            found = subprocess.run([python, "-c", ""], capture_output=True, timeout=PATIENCE, check=False)
        except FileNotFoundError:
            continue
        if found.returncode == 0:
            break
    else:
        pytest.skip("no older Python here")
    tasks = [task_in(tmp_path, node_rank=node, join_timeout=60.0, python=python) for node in range(2)]
    agents = [start_agent(task, python) for task in tasks]
    assert [end_of(agent) for agent in agents] == [0, 0]
    assert all(f"python{events(task, 'agent_started')[0]['python']}".startswith(python) for task in tasks)


def test_one_node_alone_needs_no_key_and_listens_to_nobody(tmp_path: Path) -> None:
    task = task_in(tmp_path, nnodes=1, hosts=("n1",), credentials="", interface="lo")
    assert end_of(start_agent(task)) == 0
    assert events(task, "listening") == []
    assert events(task, "started")[0]["master_addr"] == "127.0.0.1"


def test_a_task_of_another_version_is_refused_in_a_sentence(tmp_path: Path) -> None:
    task = task_in(tmp_path)
    folder = Path(node_folder(task.run_dir, 0))
    agent = start_agent(replace(task, version=99))
    assert end_of(agent) == 1
    assert "format 99" in (folder / "agent.log").read_text()

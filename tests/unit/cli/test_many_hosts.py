"""62 hosts are shown as n[1-62], wherever people are shown hosts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.backends.base import Check, Level
from orchestrator.backends.hosts import all_of
from orchestrator.cli.render import plans, results, runs
from orchestrator.errors import BackendError
from orchestrator.operations.diff import Comparison, Row
from orchestrator.operations.submission.init import profile_from_hosts
from orchestrator.outcome.verdict import Cause, NodeState, NodeStatus, Outcome, Verdict
from orchestrator.protocol.events import read_events
from orchestrator.runs.record import RunRecord
from orchestrator.runs.reducer import reduce
from orchestrator.runs.state import RunStatus
from orchestrator.specs.documents.loader import load
from orchestrator.specs.plan import RunPaths, differences, plan

from .test_render_runs import NOW, RUNNING, golden

HOSTS = [f"n{number}" for number in range(1, 63)]
NODES = tuple(NodeState(node, host, "running", (2 * node, 2 * node + 2)) for node, host in enumerate(HOSTS))


def test_the_status_of_62_nodes_fits_a_screen() -> None:
    lost = NodeState(30, "n31", NodeStatus.LOST, (60, 62), {60: "exit code 1"})
    failed = Verdict(Outcome.FAILED, Cause.INFRA, "node 30 (n31) was lost: no heartbeat for 6 s", rank=60)
    waiting = (*NODES[:2], *(NodeState(node, host, NodeStatus.WAITING) for node, host in enumerate(HOSTS[2:], 2)))
    states = [
        replace(RUNNING, nodes=NODES, world_size=124),
        replace(RUNNING, nodes=waiting, world_size=None, state=RunStatus.STARTING, detail="waiting for nodes 2-61"),
        replace(RUNNING, nodes=(*NODES[:30], lost, *NODES[31:]), state=RunStatus.FAILED, verdict=failed, ended=NOW),
    ]
    golden("status_many", "\n\n----\n\n".join(runs.status_page(state, None, None, "/runs/x", NOW) for state in states))


def test_who_is_waited_for() -> None:
    run = RunRecord.from_json("x-234567", {"nnodes": 62, "hosts": HOSTS, "kind": "ssh"})
    submitted = {"kind": "submitted"}
    away = {"kind": "waiting_for_hosts", "start": 1, "hosts": sorted(HOSTS), "why": ["n1: no answer"]}
    assert (
        reduce(run, read_events([submitted, away]), {}, rank0_done=False).detail == "waiting for n[1-62]: n1: no answer"
    )
    begun = [{"kind": "agent_started", "node": node, "host": HOSTS[node]} for node in range(62)]
    joined = {"kind": "joined", "node": 0, "joined": 0}
    alive = dict.fromkeys(range(62), True)
    assert (
        reduce(run, read_events([submitted, *begun, joined]), alive, rank0_done=False).detail
        == "waiting for nodes 1-61"
    )
    gone = reduce(run, read_events([submitted, *begun]), dict.fromkeys(range(62), False), rank0_done=False)
    assert gone.verdict is not None
    assert gone.verdict.reason.startswith("the agent of nodes 0-61 (n[1-62]) vanished")
    assert gone.to_json()["nodes"][61]["host"] == "n62"  # programs are told each by itself


def test_what_is_wrong_with_many_hosts_is_said_once() -> None:
    def error(host: str, words: str) -> BackendError:
        return BackendError(f"{host} (10.0.0.{host[1:]}:22): {words}", f"try: ssh {host}", transient=True)

    failed = {node: error(host, "no answer within 15 s") for node, host in enumerate(HOSTS)}
    whole = all_of({**failed, 7: error("n8", "its key is unknown")})
    assert whole.message == "n[1-7,9-62]: no answer within 15 s\nn8 (10.0.0.8:22): its key is unknown"
    assert whole.hint == "try: ssh n1"
    few = all_of({node: failed[node] for node in range(2)})
    assert few.message == "n1 (10.0.0.1:22): no answer within 15 s\nn2 (10.0.0.2:22): no answer within 15 s"


def test_doctor_has_a_line_for_those_that_are_alike() -> None:
    def of(node: int, what: str) -> Check:
        host = HOSTS[node]
        if node < 50:
            return Check(node, host, what, Level.OK, "fine")
        is_ssh = what == "ssh"
        words = (f"{host} (10.0.0.{node}:22): no answer within 15 s", f"try: ssh {host}") if is_ssh else ("", "")
        return Check(node, host, what, Level.FAIL if is_ssh else Level.UNKNOWN, *words)

    checks = [of(node, what) for what in ("ssh", "clock") for node in range(62)]
    golden("doctor_many", results.doctor_page(checks))
    whole = [
        Check(0, "n1", what, Level.OK, "fine") for what in ("ssh", "python", "training", "network", "disk", "clock")
    ]
    narrow = results.doctor_page(whole, width=40)
    assert [line.split() for line in narrow.splitlines() if line.startswith("NODE")] == [
        ["NODE", "HOST", "SSH", "PYTHON", "TRAINING"], ["NODE", "HOST", "NETWORK", "DISK", "CLOCK"]
    ]  # fmt: skip


def test_a_plan_its_differences_and_a_profile_name_the_range(tmp_path: Path) -> None:
    paths = RunPaths("/run", "/code", "/inputs", "python3", "python3")
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text("script: train.py\n")
    for name, hosts in (("big", "n[1-62]"), ("small", "n[1-60], m[1-2]")):
        (tmp_path / f"{name}.yaml").write_text(f"kind: ssh\nhosts: ['{hosts}']\nnproc_per_node: 1\n")
    loaded = {name: load("job.yaml", f"{name}.yaml", cwd=tmp_path) for name in ("big", "small")}
    made = {name: plan(each.job, each.profile, f"{name}-234567", paths) for name, each in loaded.items()}
    assert "nodes        62: n[1-62]\n" in plans.plan_page(made["big"], commands=False)
    rows = {what: (one, other) for what, one, other in differences(made["big"], made["small"])}
    assert rows["profile.hosts"] == ("host=n[1-62]", "host=m[1-2], host=n[1-60]")
    assert 'hosts: ["n[1-62]"] # n[1-62]\n' in profile_from_hosts(["n[1-62]"])


def test_a_comparison_of_runs_on_many_hosts() -> None:
    row = Row("hosts", "hosts", ", ".join(HOSTS), "n1, n2")
    page = results.comparison_page(Comparison("a-222222", "b-333333", (row,), ()))
    assert page.splitlines()[1].split() == ["hosts", "hosts", "n[1-62]", "n1,", "n2"]


@pytest.mark.parametrize("count", [1, 3])
def test_a_few_hosts_are_named_one_by_one(count: int) -> None:
    page = runs.status_page(replace(RUNNING, nodes=NODES[:count]), None, None, "/runs/x", NOW)
    assert len(page.split("NODE  HOST")[1].splitlines()) == 1 + count

"""Nothing that is done for a run grows with the square of its nodes: twice the nodes are twice the work."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.backends.agents.handle import Handle, read_handle
from orchestrator.backends.batch import job
from orchestrator.backends.mirror.output_record import Home, Kept, Left, Sizes, record_left
from orchestrator.backends.settings import Host
from orchestrator.backends.slurm.scheduler import Slurm
from orchestrator.node.agent.listener import Stranger, Strangers
from orchestrator.node.agent.missing_rank import missing_rank
from orchestrator.node.container.argv import odd_image
from orchestrator.protocol.events import OutputsBrought, OutputsLeft, of
from orchestrator.protocol.rank_reports import ProcessGroup
from orchestrator.protocol.samples import RankSample, Sample
from orchestrator.protocol.task import NodeTask, Program, task_json
from orchestrator.runs import store
from orchestrator.runs.files.file_cache import FileCache
from orchestrator.runs.files.samples import NodeSamples
from orchestrator.runs.findings import straggler_scores
from orchestrator.runs.record import RunRecord
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir
from orchestrator.runs.summary import run_record
from orchestrator.transport.address import Address
from tests.counting import Counted, Word, instructions
from tests.events import event
from tests.unit.node.agent.test_leader import FINE, Gang

NODES = 200
NPROC = 4


def leading(nodes: int) -> None:
    """All that a leader decides on: joined, ready, idle and busy again, a tenth of the nodes lost, all others done."""
    gang = Gang(nodes, idle={"do": "nothing"})
    leader = gang.leader
    leader.hellos, leader.reached_at, leader.unused = Counted(), Counted(), Counted()
    for node in range(nodes):
        gang.join(node, nproc=NPROC)
        leader.reached_at[node] = f"10.0.{node % 2}.1"
    gang.everyone("path", error=None)
    gang.everyone("ready", attempt=0, port=4242, image=Word("sha256:1"))
    leader.unused = Counted()
    for _ in range(2):
        gang.everyone("unused", attempt=0, seconds=300, use="CPU 0 %")
        gang.everyone("used", attempt=0)
    lost = range(nodes - nodes // 8, nodes)
    for rank in range(nodes * NPROC):
        gang.exit(rank, {**FINE, "left": NPROC - 1 - rank % NPROC}, NPROC)
    for node in lost:
        leader.left(node, "gone", gang.now)
    for node in range(lost.start):
        gang.say(node, "idle", attempt=0)
    assert leader.phase == "ended"


def comparing_images(nodes: int) -> None:
    images = {node: Word("sha256:2" if node == 5 else "sha256:1") for node in range(nodes)}
    assert odd_image(images) == 5


def finding_who_called_another_collective(nodes: int) -> None:
    operation = [Word("all_reduce" if rank % 3 else "broadcast") for rank in range(nodes)]
    recorders = {rank: {"0": ProcessGroup("default_pg", 7, (7, operation[rank]))} for rank in range(nodes)}
    found = missing_rank(recorders)
    assert found is not None
    assert found.rank == 0


def finding_who_is_missing_of_many_groups(nodes: int) -> None:
    recorders = {
        rank: {f"pair {rank // 2}": ProcessGroup("pair", rank % 2, (1, "send") if rank % 2 else None)}
        for rank in range(nodes)
    }
    found = missing_rank(recorders)
    assert found is not None
    assert found.rank == 0


def finding_stragglers(nodes: int) -> None:
    def samples(node: int) -> tuple[Sample, ...]:
        steps = ((0, 0), (1, 10 + node))
        return tuple(Sample(at, 10.0, ranks=(RankSample(node, phase="train", step=step),)) for at, step in steps)

    assert len(straggler_scores([NodeSamples(node, samples(node)) for node in range(nodes)])) == nodes


def making_a_handle(nodes: int) -> None:
    before = Handle(HandleStatus.SUBMITTED, 0, hosts_of(nodes), {}, tuple(range(nodes)))
    assert Handle.of_start(before, 1, hosts_of(nodes), tuple(range(nodes))).former == ()


def hosts_of(nodes: int) -> tuple[Host, ...]:
    return tuple(Host(Address(Word(f"n{node}"))) for node in range(nodes))


def counting_hours(nodes: int) -> None:
    events = [
        event(kind, node, time=time, host=f"n{node}", cores=4, outcome="succeeded")
        for kind, time in (("agent_started", 0.0), ("agent_ended", 3600.0))
        for node in range(nodes)
    ]
    record = run_record(RunRecord("r-1", nnodes=nodes), events, None, (), 9.0)
    assert record["hours"]["cpu_hours"] == 4 * nodes


def hearing_strangers(nodes: int) -> None:
    """All dial at once, a few of them from one address; the later they came, the sooner they have proved themselves."""
    strangers = Strangers()
    with socket.socket() as sock:
        known = [Stranger(Word(f"10.0.0.{node // 4}"), Word("10.1.0.1"), sock, False) for node in range(nodes)]
        for each in known:
            strangers.add(each)
            assert len(strangers.alike(each)) <= 4
            assert strangers.oldest() is known[0]
        for each in reversed(known):
            strangers.remove(each)
    assert len(strangers) == 0


WORK = (
    leading, comparing_images, finding_who_called_another_collective, finding_who_is_missing_of_many_groups,
    finding_stragglers, making_a_handle, counting_hours, hearing_strangers,
)  # fmt: skip


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
def test_twice_the_nodes_are_twice_the_work(work: Callable[[int], None]) -> None:
    one, two = (instructions(lambda: work(count)) for count in (NODES, 2 * NODES))  # noqa: B023 (called at once)
    assert two < 2.3 * one


def tasks_of(nodes: int) -> list[NodeTask]:
    """Return tasks of nodes whose names can't be folded, as those of a cloud."""
    names = tuple(f"node-{index * 2654435761 % (1 << 32):08x}" for index in range(nodes))
    return [
        NodeTask(
            "r-1", node, nodes, names, 8, "/run", "/code", Program("script", "t.py"), "auto", "gloo", "python3",
            ("10.0.0.1",), (20000, 20100),
        )
        for node in range(nodes)
    ]  # fmt: skip


def test_what_is_sent_to_a_node_does_not_grow_with_the_others() -> None:
    few, many = ([task_json(task) for task in tasks_of(count)] for count in (NODES, 2 * NODES))
    assert sum(map(len, many)) < 2.1 * sum(map(len, few))
    assert len(many[NODES - 1]) <= len(few[NODES - 1]) + 1
    for planned, sent in zip(tasks_of(NODES), few, strict=True):
        told = NodeTask.from_json(json.loads(sent))
        assert (told.host, told.hosts[0]) == (planned.host, planned.hosts[0])
    assert NodeTask.from_json(json.loads(few[0])) == tasks_of(NODES)[0]  # node 0 speaks of all of them


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "runs" / "r-1")
    run.path.mkdir(parents=True)
    run.write("run.json", {"name": "one", "nnodes": 3})
    return run


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A line for each look at the events of all nodes."""
    found: list[str] = []
    events = RunDir.events

    def counted(run: RunDir, *args: FileCache) -> tuple[dict[str, object], ...]:
        found.append(run.run_id)
        return events(run, *args)

    monkeypatch.setattr(RunDir, "events", counted)
    return found


def test_the_events_of_all_nodes_are_read_once_to_record_what_was_left(run: RunDir, looks: list[str]) -> None:
    (run.path / "nodes").mkdir()
    hosts = {node: f"n{node}" for node in range(9)}
    record_left(run, {node: Left(2 if node == 3 else 0, 5) for node in hosts}, hosts, "~/.orch/runs/r-1")
    record_left(run, {node: Left() for node in hosts}, hosts, "~/.orch/runs/r-1")
    assert len(looks) == 2
    assert [(each.kind, each.left) for each in of(run.events(), OutputsLeft, OutputsBrought)] == [
        ("outputs_left", 3),
        ("outputs_brought", 3),
    ]


def test_they_are_read_once_to_prove_the_end_of_a_slurm_job(run: RunDir, looks: list[str]) -> None:
    for node in range(3):
        run.node(node).mkdir(parents=True)
        words = {"node": node, "kind": "agent_started", "host": f"n{node}"}
        (run.node(node) / "events.jsonl").write_text(json.dumps(words) + "\n")
    client: Any = SimpleNamespace(
        queue=lambda **_: SimpleNamespace(jobs=None), snapshot=SimpleNamespace(problem="it does not answer"),
        scheduler=Slurm(),
        arrays={},
    )  # fmt: skip
    assert [each.host for each in job.end(client, run)] == ["n0", "n1", "n2"]
    assert len(looks) == 1


def test_the_sizes_of_all_nodes_outputs_are_read_once(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    for node in range(3):
        Home(run, node, f"n{node}", {"a": Kept("code", "a", 10 + node, 0, "")}).write()
    read: list[int] = []
    home = Home.read
    monkeypatch.setattr(Home, "read", lambda run, node, host="": (read.append(node), home(run, node, host))[1])
    sizes = Sizes(run, range(3))
    assert [sizes.beside(node) for node in range(3)] == [23, 22, 21]
    sizes.note(1, 100)
    assert [sizes.beside(node) for node in range(3)] == [112, 22, 110]
    assert read == [0, 1, 2]


def test_what_names_every_node_is_read_once_however_often_it_is_asked_for(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.write("plan.json", {"tasks": [{"code_dir": "/code"}]})
    Handle(HandleStatus.INTENT, 0, hosts_of(3), {}, (0, 1, 2)).write(run)
    read: list[str] = []
    real = store.read_json

    def counted(path: str, most: int, below: Path | None = None) -> object:
        read.append("")
        return real(path, most, below)

    monkeypatch.setattr(store, "read_json", counted)
    for _ in range(100):
        assert run.record().nnodes == 3
        assert run.plan().first.code_dir == "/code"
        assert read_handle(run) is not None
    assert len(read) == 3
    run.write("run.json", {"name": "one", "nnodes": 4})
    Handle(HandleStatus.SUBMITTED, 0, hosts_of(2), {}, (0, 1)).write(run)
    handle = read_handle(run)
    assert (run.record().nnodes, len(handle.hosts) if handle else 0) == (4, 2)
    (run.path / "run.json").unlink()
    assert run.record() == RunRecord("r-1", is_lost=True)

"""The agent's loop: it goes on, whatever one of its messages has begun."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.node.agent import agent as module
from orchestrator.node.agent import ranks
from orchestrator.node.agent.agent import Agent
from orchestrator.node.agent.channel import pair
from orchestrator.node.agent.ranks import Ranks
from orchestrator.protocol.messages import Go, RankEnded, Report, Trouble, read_report
from orchestrator.protocol.ranks import EXIT_REQUEUE, Binding
from tests.local.test_agents import task_in
from tests.patience import PATIENCE
from tests.unit.node.agent.members import TLS, run


def test_a_way_that_gives_no_answer_keeps_no_heartbeat_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is waited for longer than a node may be silent: it would count as lost, and the way go unnamed."""

    async def no_answer(*_: Any) -> str:
        await asyncio.Event().wait()
        return "unreachable"

    monkeypatch.setattr(module, "probe", no_answer)

    async def main() -> None:
        agent = Agent(replace(task_in(tmp_path), node_rank=1))
        agent.tls = TLS
        agent.channel, leaders = await pair()
        check = {"kind": "check", "addrs": ["127.0.0.1"], "port": 1, "host": "n1"}
        await asyncio.wait_for(agent._obey(check), PATIENCE)
        await agent._look()
        assert await asyncio.wait_for(leaders.receive(), PATIENCE) == {"kind": "heartbeat"}
        for task in agent.tasks:
            task.cancel()
        await agent.channel.close()
        await leaders.close()

    run(main)


@pytest.mark.parametrize(
    "report",
    [
        {"kind": "exit"}, {"kind": "exit", "attempt": 0, "rank": [], "code": 1},
        {"kind": "idle", "attempt": "x"}, {"kind": "started", "attempt": 0, "pids": 5},
    ],
)  # fmt: skip
def test_a_report_that_can_not_be_understood_is_trouble_and_no_end_of_the_agent(
    tmp_path: Path, report: dict[str, Any]
) -> None:
    """The launcher of a container runs in an image that anybody may have built."""

    async def main() -> list[Report]:
        agent = Agent(task_in(tmp_path))
        agent.ranks.running = {0}
        understood = read_report(report)
        assert understood is not None
        await agent._handle_report(understood)
        assert agent.outcome is None
        return agent.untold

    (told,) = asyncio.run(main())
    assert isinstance(told, Trouble)
    assert told.cause == "infra"
    assert "is not understood" in told.reason


def test_the_end_of_a_rank_is_told_whatever_its_files_lead_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> dict[str, Any]:
        raise RecursionError("too deep")

    monkeypatch.setattr(Ranks, "_saves", broken)
    monkeypatch.setattr(ranks, "gpu_error_of", broken)

    async def main() -> list[Report]:
        agent = Agent(task_in(tmp_path))
        agent.ranks.running = {0}
        await agent._handle_report(RankEnded(0, 0, 3))
        return agent.untold

    (told,) = asyncio.run(main())
    assert isinstance(told, RankEnded)
    assert (told.rank, told.code) == (0, 3)
    written = [json.loads(line) for line in (tmp_path / "nodes/0/events.jsonl").read_text().splitlines()]
    assert [each["what"] for each in written if each["kind"] == "launcher_report_failed"] == [
        "the end of rank 0", "a GPU's error",
    ]  # fmt: skip


@pytest.mark.parametrize(("cancels", "outcome"), [(True, ("cancelled", 1)), (False, ("preempted", EXIT_REQUEUE))])
def test_a_signal_before_the_node_has_joined_ends_the_agent_and_asks_for_another_start_unless_it_is_a_cancel(
    tmp_path: Path, cancels: bool, outcome: tuple[str, int]
) -> None:
    async def main() -> Agent:
        agent = Agent(task_in(tmp_path))
        await agent._receive_signal("SIGTERM")
        return agent

    if cancels:
        (tmp_path / "cancel.json").write_text("{}")
    assert asyncio.run(main()).outcome == outcome


@pytest.mark.parametrize(
    ("interface", "own", "told"),
    [(None, "10.0.0.5", "10.0.0.5"), (None, "127.0.0.1", "10.0.0.7"), ("lo", "127.0.0.2", "127.0.0.1")],
)
def test_the_ranks_use_the_named_interface_or_the_way_to_node_0_that_other_nodes_can_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interface: str | None, own: str, told: str
) -> None:
    monkeypatch.setattr(module, "NeighbourServer", lambda *_, **__: SimpleNamespace(port=7000))
    monkeypatch.setattr(module, "listening_addresses", lambda *_: ("10.0.0.7",))

    async def main() -> None:
        agent = Agent(replace(task_in(tmp_path), leader_addrs=("10.0.0.1",), interface=interface))
        agent.tls = TLS
        assert (await agent._hello_at(own)).addrs == (told,)

    run(main)


@pytest.mark.parametrize(
    ("own_ranks", "interface", "network"), [(False, None, {"N": "lo"}), (True, None, {}), (True, "ib0", {"N": "lo"})]
)
def test_a_batch_file_gets_only_an_interface_that_the_profile_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_ranks: bool, interface: str | None, network: dict[str, str]
) -> None:
    monkeypatch.setattr(module, "network_environment", lambda *_: {"N": "lo"})
    orders: list[Go] = []

    async def main() -> None:
        task = task_in(tmp_path)
        agent = Agent(replace(task, interface=interface, program=replace(task.program, own_ranks=own_ranks)))
        monkeypatch.setattr(agent.ranks, "go", orders.append)
        agent._go(Go(0, Binding(0, 1, 1, 0, 1), "127.0.0.1", 1))

    run(main)
    assert orders[0].network == network

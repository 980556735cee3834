"""The agent's loop: it goes on, whatever one of its messages has begun."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.agent import agent as module
from orchestrator.node.agent.agent import Agent
from orchestrator.node.agent.channel import pair
from tests.local.test_agents import task_in
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
        await asyncio.wait_for(agent._from_leader(check), 5)
        await agent._from_clock({})
        assert await asyncio.wait_for(leaders.receive(), 5) == {"kind": "heartbeat"}
        for task in agent.tasks:
            task.cancel()
        await agent.channel.close()
        await leaders.close()

    run(main)

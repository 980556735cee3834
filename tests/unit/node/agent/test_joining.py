"""A node that takes long to reach node 0 tells why."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.node.agent import joining
from orchestrator.node.agent.channel import Channel, ChannelError


def test_the_reason_is_told_once_it_takes_long_and_again_if_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    early = joining._Late(told.append)
    early.note("refused")
    assert told == []
    early.begun -= 5.0  # a person who looks after 10 s sees it
    early.note("refused")
    assert told == ["refused"]
    told.clear()
    monkeypatch.setattr(joining, "LATE_SECONDS", 0.0)
    late = joining._Late(told.append)
    for why in ("refused", "refused", "timed out"):
        late.note(why)
    assert told == ["refused", "timed out"]


def test_packets_that_are_dropped_silently_are_told_before_any_try_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "LATE_SECONDS", 0.0)

    async def run() -> str:
        said: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def dial() -> Channel:
            await said
            raise ChannelError("10.0.0.1: timed out")

        with pytest.raises(ChannelError):
            await joining._Late(said.set_result).watched(dial())
        return said.result()

    assert asyncio.run(run()) == "no answer within 0 s"

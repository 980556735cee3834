"""The search for the checkpoints that a program saves after an offer."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from orchestrator.node.agent import offer
from orchestrator.node.agent.offer import Offer
from orchestrator.protocol.checkpoints.formats import Format
from orchestrator.protocol.checkpoints.search import Saved
from tests.unit.specs.test_plan import planned

OFFERED = Saved(Format.HF, "/out/checkpoint-20", 20, 1.0)


def test_a_search_that_hangs_on_a_dead_disk_keeps_only_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    answers = threading.Event()

    def search(*_: Any) -> tuple[int, int]:
        begun.append("search")
        answers.wait(300)
        return 20, 30

    monkeypatch.setattr(offer, "first_saved", search)
    monkeypatch.setattr(offer, "LOOK_SECONDS", 0.01)
    recorded: list[dict[str, Any]] = []

    async def run() -> None:
        watched = Offer(
            planned().tasks[0], 1, "checkpoint-20", {"checkpoint-20": OFFERED},
            recorded.append,
        )  # fmt: skip
        for _ in range(3):
            await watched._look_at_saves()
        assert recorded == []
        answers.set()
        monkeypatch.setattr(offer, "LOOK_SECONDS", 300.0)
        await watched.end()

    asyncio.run(run())
    assert begun == ["search"]
    assert [(each.offered_step, each.saved) for each in recorded] == [(20, 30)]

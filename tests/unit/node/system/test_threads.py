"""Blocking work beside the agent's loop is done also where no thread can be started any more."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from orchestrator.node.system import threads
from orchestrator.node.system.threads import in_thread, keep_a_thread
from orchestrator.node.system.workers import Workers


def refuse(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Workers:
    workers = Workers()
    monkeypatch.setattr(threads, "_workers", workers)
    return workers


@pytest.mark.parametrize("early", [True, False])
def test_without_a_new_thread_the_work_is_done_by_those_that_are_there(
    fresh: Workers, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    async def work() -> list[Any]:
        return await asyncio.gather(*(in_thread(str, number) for number in range(20)), in_thread(threading.get_ident))

    if early:
        keep_a_thread()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    for _ in range(2):
        *found, done_by = asyncio.run(work())
        assert found == [str(number) for number in range(20)]
        assert (done_by != threading.get_ident()) is early
    assert fresh.threads == early


def test_work_that_hangs_keeps_no_other_waiting_and_workers_are_used_again(fresh: Workers) -> None:
    let_go = threading.Event()

    async def work() -> None:
        stuck = asyncio.ensure_future(in_thread(let_go.wait))
        for _ in range(20):
            await in_thread(str, 1)
        assert not stuck.done()
        let_go.set()
        await stuck

    asyncio.run(work())
    assert fresh.threads <= 3  # a worker counts as free a moment after its result is there


def test_an_error_of_the_work_is_raised_where_it_is_awaited(fresh: Workers) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        asyncio.run(in_thread(int, "x"))

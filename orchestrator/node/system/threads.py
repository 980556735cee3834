"""Runs blocking work in threads, outside of the agent's event loop."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Callable, TypeVar

from orchestrator.node.system.workers import Workers

Result = TypeVar("Result")

_workers = Workers()


def keep_a_thread() -> None:
    """Start the first worker thread early, before other processes exhaust a limit on processes and threads."""
    if not _workers.threads:
        _workers.start_one()


async def in_thread(work: Callable[..., Result], *args: Any) -> Result:
    """Run blocking work in a worker thread. Return the work's result, or raise its error."""
    loop, future = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def deliver(method: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            method(value)

    def run() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits for the result
            try:
                result = work(*args)
            except Exception as error:  # noqa: BLE001 (raised again where the result is awaited)
                loop.call_soon_threadsafe(deliver, future.set_exception, error)
            else:
                loop.call_soon_threadsafe(deliver, future.set_result, result)

    _workers.do(run)
    found: Result = await future
    return found

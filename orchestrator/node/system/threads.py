"""Blocking work beside the agent's loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any, Callable, TypeVar

Result = TypeVar("Result")


async def in_thread(work: Callable[..., Result], *args: Any) -> Result:
    """Return the result of blocking work. Its thread is a daemon: one that hangs on a dead disk holds up no exit."""
    loop, future = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def deliver(method: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            method(value)

    def run() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            try:
                result = work(*args)
            except Exception as error:  # noqa: BLE001 (raised again where the result is awaited)
                loop.call_soon_threadsafe(deliver, future.set_exception, error)
            else:
                loop.call_soon_threadsafe(deliver, future.set_result, result)

    threading.Thread(target=run, daemon=True).start()
    found: Result = await future
    return found

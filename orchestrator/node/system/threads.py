"""Blocking work beside the agent's loop."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from typing import Any, Callable, TypeVar

Result = TypeVar("Result")
Work = Callable[[], None]


class Workers:
    """Threads that do blocking work and are kept for the next work. If no thread can be started, they do all of it.

    A worker is a daemon, so a worker that hangs on a dead disk holds up no exit; other work gets another worker.
    """

    def __init__(self) -> None:
        self.works: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.threads = 0
        self.free = 0  # the workers that wait, less the works that no worker has taken yet

    def start_one(self) -> bool:
        """Start a worker; return False if the system allows no further thread."""
        try:
            threading.Thread(target=self._serve, daemon=True).start()
        except RuntimeError:  # a limit of processes and threads, or no memory for a stack
            return False
        with self.lock:
            self.threads, self.free = self.threads + 1, self.free + 1
        return True

    def do(self, work: Work) -> None:
        """Have the work done by a worker: a free worker, a new worker, or the next worker that becomes free."""
        with self.lock:
            self.free -= 1
            is_short = self.free < 0
        if is_short and not self.start_one() and not self.threads:
            with self.lock:
                self.free += 1
            work()  # late is better than never
            return
        self.works.put(work)

    def _serve(self) -> None:
        while True:
            self.works.get()()
            with self.lock:
                self.free += 1


_workers = Workers()


def keep_a_thread() -> None:
    """Start the first worker early, before a limit of processes and threads is reached."""
    if not _workers.threads:
        _workers.start_one()


async def in_thread(work: Callable[..., Result], *args: Any) -> Result:
    """Return the result of blocking work."""
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

    _workers.do(run)
    found: Result = await future
    return found

"""An event loop whose time is a number: where nothing is left to do now, it is at once the time of what is next."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

Result = TypeVar("Result")
BEGIN = 1000.0
LONGEST = 1800.0  # seconds, virtual: a story that lasts longer has somebody who waits for nothing


class StuckError(Exception):
    """Nothing is left that could happen, and somebody still waits."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop that never waits; sockets of the system are not looked at."""

    def __init__(self) -> None:
        self.now = BEGIN
        super().__init__(_Jumps(self))

    def time(self) -> float:
        """Return the virtual time."""
        return self.now


class _Jumps(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self.loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or self.loop.now > BEGIN + LONGEST:
            raise StuckError
        self.loop.now += max(0.0, timeout)
        return []


def run_virtually(
    main: Callable[[], Awaitable[Result]], loop_factory: Callable[[], VirtualLoop] = VirtualLoop
) -> Result:
    """Return the result of a coroutine that runs in virtual time; what fails beside it fails here."""
    problems: list[Any] = []

    async def watched() -> Result:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        return await main()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        result = runner.run(watched())
    assert problems == [], problems[:3]
    return result

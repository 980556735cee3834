"""A leader of a gang that writes down what happens to it, and what others do at its socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from orchestrator.node.agent.channel import Channel
from orchestrator.node.agent.joining import dial, introduce
from orchestrator.node.agent.leader_service import Members
from orchestrator.node.agent.listener import Listener
from orchestrator.node.agent.tls import Tls
from orchestrator.node.system.sockets import ANY_PORT, listen, port_of
from orchestrator.protocol.gang import Hello
from orchestrator.protocol.messages import Report
from orchestrator.transport.credentials import new_credentials
from tests.patience import PATIENCE

HERE = ("127.0.0.1",)
CREDENTIALS, ANOTHER_RUNS = new_credentials(), new_credentials()
TLS, ANOTHER = Tls.of(CREDENTIALS), Tls.of(ANOTHER_RUNS)
opened: list[Channel] = []
dialled: list[asyncio.StreamWriter] = []

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def hello(node: int = 1) -> Hello:
    return Hello(node, f"n{node}", 2, HERE, 7000)


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run a test's coroutine, bounded in time, and close the channels that it opened."""

    async def bounded() -> None:
        problems: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        try:
            await asyncio.wait_for(main(), PATIENCE)
        finally:
            while opened:
                await opened.pop().close()
            while dialled:
                writer = dialled.pop()
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        assert problems == []

    asyncio.run(bounded())


async def join(port: int, node: int = 1, addrs: tuple[str, ...] = HERE, tls: Tls = TLS) -> Channel:
    opened.append(await dial(tls, addrs, (port,)))
    await introduce(opened[-1], hello(node))
    return opened[-1]


class Heard:
    """A leader's server at these addresses that writes down what happens to it."""

    def __init__(self, tls: Tls = TLS, addrs: tuple[str, ...] = HERE) -> None:
        self.joined: list[Hello] = []
        self.reached: list[str] = []
        self.messages: list[tuple[int, Report]] = []
        self.gone: list[tuple[int, str]] = []
        self.told: list[dict[str, int]] = []
        self.news = asyncio.Event()
        self.server = Members(
            on_join=self._joined,
            on_message=lambda node, message: self._heard(self.messages, (node, message)),
            on_left=lambda node, reason: self._heard(self.gone, (node, reason)),
        )
        socks = listen(addrs, ANY_PORT)
        self.port = port_of(socks)
        self.listener = Listener(tls, socks, self.server.serve, tell=lambda counts: self.told.append(dict(counts)))

    def _joined(self, who: Hello, reached: str) -> None:
        self.reached.append(reached)
        self._heard(self.joined, who)

    def _heard(self, kept: list[Any], what: Any) -> None:
        kept.append(what)
        self.news.set()

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), PATIENCE)


@contextlib.asynccontextmanager
async def leader(tls: Tls = TLS, addrs: tuple[str, ...] = HERE) -> AsyncIterator[Heard]:
    heard = Heard(tls, addrs)
    try:
        yield heard
    finally:
        await heard.listener.close(patience=0.2)


async def raw(port: int) -> Streams:
    """A connection without any TLS; it is closed at the end of the test."""
    streams = await asyncio.open_connection("127.0.0.1", port)
    dialled.append(streams[1])
    return streams


@contextlib.asynccontextmanager
async def foreign(say: bytes, *, closes: bool = False) -> AsyncIterator[int]:
    """Some other program's server, which says something, and closes or keeps the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(say)
        try:
            if not closes:
                await reader.read()
        except (ConnectionError, asyncio.CancelledError):
            pass  # the test is over
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()

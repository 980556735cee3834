"""Streams over one pair of pipes end without a word when their process ends."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

from orchestrator.node.debug.streams import Streams


def test_streams_that_are_open_at_the_end_print_nothing() -> None:
    """asyncio prints a traceback if nobody reads the error of a future, which it learns when the future is freed."""
    printed = list[dict[str, Any]]()
    pipe, other_end, connection, client = [*socket.socketpair(), *socket.socketpair()]

    async def ended_in_the_middle() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: printed.append(context))
        streams = Streams(*await asyncio.open_connection(sock=pipe))
        carrying = asyncio.ensure_future(streams.carry(*await asyncio.open_connection(sock=connection)))
        reader, writer = await asyncio.open_connection(sock=other_end)
        client.sendall(b"hello")
        assert b"hello" in await reader.read(100) + await reader.read(100)
        assert not carrying.done()
        writer.close()
        streams.writer.close()

    asyncio.run(ended_in_the_middle())
    client.close()
    gc.collect()
    assert printed == []

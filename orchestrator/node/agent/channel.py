"""A connection between two agents, or between an agent and the leader in its own process. Both sides send JSON
lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any

from orchestrator.protocol.json_text import parse_json

MAX_LINE = 1 << 18
CLOSE_SECONDS = 1.0  # a peer that does not read must not delay the end

Message = dict[str, Any]


class ChannelError(Exception):
    """The peer does not belong to this run, or broke the protocol."""


class NoAnswerError(ChannelError):
    """The peer did not answer within the time limit."""


class Channel:
    """A connection over which both sides send JSON lines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @property
    def own_addr(self) -> str:
        """Return this side's address, which the other side can reach; "" if both sides are in one process."""
        return _address(self.writer.get_extra_info("sockname"))

    @property
    def peer_addr(self) -> str:
        """Return the other side's address; "" if both sides are in one process."""
        return _address(self.writer.get_extra_info("peername"))

    def send(self, message: Message) -> None:
        """Queue a message. If the connection is broken, nothing is raised here, and the next `receive` reports the
        error.
        """
        if not self.writer.is_closing():
            self.writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self) -> Message | None:
        """Return the next message; None if the peer has closed the connection. Raises ChannelError if the peer sent an
        invalid message.
        """
        try:
            line = await self.reader.readline()
        except OSError:  # also "no route to host", which is no ConnectionError
            return None
        except ValueError as error:
            raise ChannelError(f"a line of more than {MAX_LINE} bytes") from error
        if not line.endswith(b"\n"):
            return None
        try:
            message = parse_json(line)
        except ValueError as error:
            raise ChannelError("a line that is not JSON") from error
        if not isinstance(message, dict):
            raise ChannelError("a line that is not a JSON object")
        return message

    async def answer(self, seconds: float) -> Message:
        """Return the next message. Raises ChannelError if the peer closes the connection or sends nothing within
        `seconds`.
        """
        try:
            message = await asyncio.wait_for(self.receive(), seconds)
        except asyncio.TimeoutError as error:
            raise NoAnswerError(f"no answer within {seconds:g} s") from error
        if message is None:
            raise ChannelError("the connection was closed")
        return message

    async def close(self) -> None:
        """Flush and close the connection. Bytes that the peer does not read in time are dropped."""
        if not self.writer.is_closing():  # after a second close, a TLS transport could not be aborted
            self.writer.close()
        try:
            await asyncio.wait_for(self.writer.wait_closed(), CLOSE_SECONDS)
        except (OSError, asyncio.TimeoutError):
            self.writer.transport.abort()


def _address(name: tuple[Any, ...] | str | None) -> str:
    return str(name[0]) if isinstance(name, tuple) else ""


async def pair() -> tuple[Channel, Channel]:
    """Return the two ends of a connection inside this process."""
    one, other = socket.socketpair()
    return (
        Channel(*await asyncio.open_connection(sock=one, limit=MAX_LINE)),
        Channel(*await asyncio.open_connection(sock=other, limit=MAX_LINE)),
    )


async def settled(tasks: set[asyncio.Task[None]], seconds: float) -> None:
    """Cancel the tasks, and wait for up to `seconds` until they have ended."""
    for task in tasks:
        task.cancel()
    if tasks:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait(set(tasks), timeout=seconds)

"""Multiplexes byte streams over one pair of pipes. Both ends run this code. If one stream is not read, the other
streams continue.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Awaitable
from typing import Any, Callable

# the message's kind, the stream's number, the number of bytes that follow (for CREDIT: that may be sent in addition)
HEAD = struct.Struct("!BII")
OPEN, DATA, END, FAILED, CREDIT = range(1, 6)
PIECE = 1 << 15
WINDOW = 1 << 18  # bytes of a stream that may be in transit

Dial = Callable[[], Awaitable["tuple[asyncio.StreamReader, asyncio.StreamWriter]"]]


class _Stream:
    """A stream: the number of bytes that may still be sent (its credit), and the data that has arrived."""

    def __init__(self, number: int) -> None:
        self.number, self.credit, self.waiting = number, WINDOW, 0
        self.may_send, self.given_up = asyncio.Event(), asyncio.Event()
        self.came: asyncio.Queue[bytes | None] = asyncio.Queue()


class Streams:
    """The streams over one pair of pipes. The end that has no `dial` opens streams.

    For each opened stream, the end that has `dial` calls this function, and connects the stream with the connection
    that the function returns.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dial: Dial | None = None) -> None:
        self.reader, self.writer, self.dial = reader, writer, dial
        self.streams: dict[int, _Stream] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.writing, self.number, self.is_over = asyncio.Lock(), 0, False

    async def serve(self) -> None:
        """Handle messages until the other end has closed its pipe. Raises ValueError if the other end violates the
        protocol.
        """
        try:
            while True:
                kind, number, size = HEAD.unpack(await self.reader.readexactly(HEAD.size))
                data = await self.reader.readexactly(size) if kind == DATA and size <= PIECE else b""
                self._take(kind, number, size, data)
        except (asyncio.IncompleteReadError, OSError):
            return
        finally:
            self.is_over = True
            for stream in self.streams.values():
                stream.given_up.set()
            self.writer.close()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Open a stream to the other end, and copy data between the stream and this connection until both end."""
        if self.is_over:
            writer.transport.abort()
            return
        self.number += 1
        stream = self.streams[self.number] = _Stream(self.number)
        await self._send(OPEN, stream.number)
        await self._join(stream, reader, writer)

    def _take(self, kind: int, number: int, size: int, data: bytes) -> None:
        stream = self.streams.get(number)
        if kind == OPEN and self.dial is not None and stream is None:
            self.streams[number] = _Stream(number)
            task = asyncio.ensure_future(self._answer(self.streams[number], self.dial))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        elif kind not in (DATA, END, FAILED, CREDIT) or (kind == DATA and len(data) != size):
            raise ValueError("the program at the other end of the connection is not orch")
        elif stream is None:
            return  # this end has already abandoned the stream
        elif kind == CREDIT:
            stream.credit += size
            stream.may_send.set()
        elif kind == FAILED:
            stream.given_up.set()
        else:
            stream.waiting += len(data)
            if stream.waiting > WINDOW:
                raise ValueError("the other end of the connection has sent more data than allowed")
            stream.came.put_nowait(data if kind == DATA else None)

    async def _answer(self, stream: _Stream, dial: Dial) -> None:
        try:
            reader, writer = await dial()
        except OSError:
            self.streams.pop(stream.number, None)
            await self._send(FAILED, stream.number)
        else:
            await self._join(stream, reader, writer)

    async def _join(self, stream: _Stream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        both = asyncio.ensure_future(self._both_ways(stream, reader, writer))
        given_up: asyncio.Future[Any] = asyncio.ensure_future(stream.given_up.wait())
        try:
            await asyncio.wait({both, given_up}, return_when=asyncio.FIRST_COMPLETED)
            if given_up.done():
                writer.transport.abort()
            elif not both.cancelled() and both.exception() is not None:  # this end's connection is broken
                await self._send(FAILED, stream.number)
        finally:
            self.streams.pop(stream.number, None)
            both.cancel()
            given_up.cancel()
            writer.close()

    async def _both_ways(self, stream: _Stream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy data in both directions until both have ended, or until the first error."""
        ways = [asyncio.ensure_future(self._out(stream, reader)), asyncio.ensure_future(self._in(stream, writer))]
        try:
            # Nothing else may wait for this future: if both are cancelled, asyncio prints that nobody read its error.
            await asyncio.gather(*ways)
        finally:
            for way in ways:
                way.cancel()

    async def _out(self, stream: _Stream, reader: asyncio.StreamReader) -> None:
        while True:
            while stream.credit <= 0:
                stream.may_send.clear()
                await stream.may_send.wait()
            data = await reader.read(min(PIECE, stream.credit))
            stream.credit -= len(data)
            await self._send(DATA if data else END, stream.number, data)
            if not data:
                return

    async def _in(self, stream: _Stream, writer: asyncio.StreamWriter) -> None:
        while (data := await stream.came.get()) is not None:
            writer.write(data)
            await writer.drain()
            stream.waiting -= len(data)
            await self._send(CREDIT, stream.number, size=len(data))
        if writer.can_write_eof():
            writer.write_eof()

    async def _send(self, kind: int, number: int, data: bytes = b"", size: int = 0) -> None:
        async with self.writing:  # only one task may wait for the pipe
            with contextlib.suppress(OSError):  # `serve` ends when the other end has closed
                self.writer.write(HEAD.pack(kind, number, size or len(data)) + data)
                await self.writer.drain()

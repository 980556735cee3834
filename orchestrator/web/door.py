"""Accepts connections for the page's server one at a time, and bounds their number and their idle time.

uvicorn alone would accept all connections of all users. When too many files are open, asyncio then writes a traceback
for each connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orchestrator.node.system.tcp_peers import owner_of_peer
from orchestrator.transport.local_users import Guard
from orchestrator.web.listening import Listeners

if TYPE_CHECKING:
    from starlette.types import ASGIApp

PAUSE_SECONDS: Final = 0.2  # the wait before the next accept if there was no free file descriptor
_NO_FILE: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
Speaker = Callable[["Visit"], asyncio.Protocol]
"""Creates the HTTP protocol for the connection of a visit."""


@dataclass(frozen=True)
class Limits:
    """The maximum number of open connections, and the maximum time in which a connection must send a whole request."""

    connections: int = 128
    idle_seconds: float = 20.0


@dataclass(eq=False)
class Visit:
    """One connection: the door that accepted it, the user at its other end, and when it became idle."""

    door: Door
    connection: socket.socket
    owner: int | None
    idle_since: float
    answering: int = 0
    transport: asyncio.Transport | None = None

    @property
    def is_over(self) -> bool:
        return self.connection.fileno() < 0  # asyncio closes the connection after it is lost

    @property
    def is_idle(self) -> bool:
        """Return True if no request on the connection is being answered and the last answer was sent completely."""
        return not self.answering and (self.transport is None or not self.transport.get_write_buffer_size())

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Count the connection as busy within a `with` block, in which a request is answered."""
        self.answering += 1
        try:
            yield
        finally:
            self.answering -= 1
            self.idle_since = asyncio.get_running_loop().time()

    def drop(self) -> None:
        """Close the connection now, without waiting for unsent data."""
        if self.transport is not None:
            self.transport.abort()


class Door:
    """Accepts the connections that `guard` admits, for one application.

    If too many connections are open, an open connection is closed for each new connection. The closed connection
    belongs to the user with the most connections. It is the connection that has been idle the longest or, if none is
    idle, the oldest.
    """

    def __init__(self, app: ASGIApp, listeners: Listeners, guard: Guard, limits: Limits | None = None) -> None:
        self.app, self.listeners, self.guard, self.limits = app, listeners, guard, limits or Limits()
        self.visits: list[Visit] = []

    async def serve(self, speaker: Speaker) -> None:
        """Accept connections until this task is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._end_idle_ones())
            for listener in self.listeners:
                listener.setblocking(False)
                tasks.create_task(self._accept(listener, speaker))

    async def _accept(self, listener: socket.socket, speaker: Speaker) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _NO_FILE:
                    self._make_room(at_least=1)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            try:
                await self._greet(connection, speaker)
            except OSError:  # the client has gone
                connection.close()
            # sock_accept returns at once while connections are queued, so let other tasks answer requests
            await asyncio.sleep(0)

    async def _greet(self, connection: socket.socket, speaker: Speaker) -> None:
        loop = asyncio.get_running_loop()
        if not self.guard.admits(connection):
            connection.close()
            return
        self._make_room()
        visit = Visit(self, connection, owner_of_peer(connection), loop.time())
        visit.transport, _ = await loop.connect_accepted_socket(lambda: speaker(visit), connection)
        self.visits.append(visit)

    def _make_room(self, at_least: int = 0) -> None:
        """Close connections until fewer than the limit are open. At least `at_least` connections are closed."""
        self.visits = [each for each in self.visits if not each.is_over]
        excess = len(self.visits) + 1 - self.limits.connections
        for _ in range(min(max(excess, at_least), len(self.visits))):
            counts = Counter(each.owner for each in self.visits)
            most = max(counts.values())
            visit = min(
                (each for each in self.visits if counts[each.owner] == most),
                key=lambda each: (not each.is_idle, each.idle_since),
            )
            self.visits.remove(visit)
            visit.drop()

    async def _end_idle_ones(self) -> None:
        """Close connections that have been idle for too long. A regular check of all connections costs less than a
        timer for each.
        """
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.limits.idle_seconds / 10)
            now = loop.time()
            for visit in self.visits:
                if not visit.is_idle:
                    visit.idle_since = now
                elif now - visit.idle_since > self.limits.idle_seconds:
                    visit.drop()
            self.visits = [each for each in self.visits if not each.is_over]


async def through_its_door(scope: Any, receive: Any, send: Any) -> None:
    """Pass a request to the application of the door that accepted the request's connection."""
    visit: Visit = scope["state"]["visit"]
    with visit.busy():
        await visit.door.app(scope, receive, send)

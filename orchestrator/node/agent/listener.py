"""Listens for members of a run. A connection whose peer has not authenticated itself is called a stranger. The number
of strangers is limited.

The gang's leader and every node's neighbour server use this listener.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from typing import Callable

from orchestrator.node.agent.channel import CLOSE_SECONDS, Channel, ChannelError, settled
from orchestrator.node.agent.tls import Tls

MAX_STRANGERS = 64
MAX_OF_ONE_ADDRESS = 4
NAMED = 8  # the number of strangers' addresses that are reported
PAUSE_SECONDS = 1.0  # the pause before connections are accepted again, after a limit on open files was reached


@dataclass(eq=False)
class Stranger:
    """A connection whose peer has not yet authenticated itself as a member of the run."""

    addr: str
    at: str  # the local address of the connection; a member connects to all addresses at once
    sock: socket.socket
    is_of_this_machine: bool
    task: asyncio.Task[None] | None = None
    has_begun: bool = False


class Strangers:
    """The connections whose peers have not authenticated themselves yet, the oldest first.

    Each method is fast for any number of connections, because all nodes of a gang may connect at once.
    """

    def __init__(self) -> None:
        self._all: OrderedDict[Stranger, None] = OrderedDict()
        self._alike: dict[tuple[str, str], OrderedDict[Stranger, None]] = {}

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self._all)

    def add(self, stranger: Stranger) -> None:
        """Add the newest connection."""
        self._all[stranger] = None
        self._alike.setdefault((stranger.addr, stranger.at), OrderedDict())[stranger] = None

    def remove(self, stranger: Stranger) -> None:
        """Remove a connection if it is still in the collection."""
        if stranger not in self._all:
            return
        del self._all[stranger]
        alike = self._alike[stranger.addr, stranger.at]
        del alike[stranger]
        if not alike:
            del self._alike[stranger.addr, stranger.at]

    def oldest(self) -> Stranger:
        """Return the oldest connection."""
        return next(iter(self._all))

    def alike(self, stranger: Stranger) -> OrderedDict[Stranger, None]:
        """Return the connections that have the same source address and the same local address as this connection,
        including this connection itself.
        """
        return self._alike[stranger.addr, stranger.at]

    def take_all(self) -> list[Stranger]:
        """Remove and return all connections."""
        found = list(self._all)
        self._all.clear()
        self._alike.clear()
        return found


class Listener:
    """Listening sockets that admit only members of the run. `rejected` counts all other peers by address."""

    def __init__(
        self,
        tls: Tls,
        socks: Iterable[socket.socket],
        serve: Callable[[Channel], Awaitable[None]],
        *,
        members: int = 0,
        tell: Callable[[Mapping[str, int]], None] = lambda counts: None,
    ) -> None:
        """Listen until close(). `serve` receives each member's channel. Whenever the number of rejected peers has
        doubled, `tell` receives their addresses, each with the number of rejections.
        """
        self.tls, self.socks, self.serve, self.tell = tls, list(socks), serve, tell
        self.most = MAX_STRANGERS + members  # all members may connect at the same moment
        self.strangers = Strangers()
        self.rejected: Counter[str] = Counter()
        self.told = 0
        self.serving: set[asyncio.Task[None]] = set()
        for sock in self.socks:
            sock.setblocking(False)
            self._listen(sock)

    def _listen(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            asyncio.get_running_loop().add_reader(sock, self._accept, sock)

    def _accept(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            peer, (addr, *_) = sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:  # the limit on open files is reached; no event reports when accepting works again, so pause
            loop.remove_reader(sock)
            loop.call_later(PAUSE_SECONDS, self._listen, sock)
            return
        peer.setblocking(False)
        stranger = Stranger(addr, sock.getsockname()[0], peer, is_of_this_machine(addr, sock))
        stranger.task = loop.create_task(self._hear(stranger))
        self.strangers.add(stranger)
        self._drop_surplus(stranger)

    def _drop_surplus(self, newest: Stranger) -> None:
        """If too many connections are unauthenticated, close the oldest. The newest connection is kept, because it may
        be a member's.
        """
        alike = self.strangers.alike(newest)
        if len(alike) > MAX_OF_ONE_ADDRESS and not newest.is_of_this_machine:
            self._drop(next(iter(alike)))
        elif len(self.strangers) > self.most:
            self._drop(self.strangers.oldest())

    def _drop(self, stranger: Stranger) -> None:
        self.strangers.remove(stranger)
        assert stranger.task is not None
        stranger.task.cancel()
        if not stranger.has_begun:
            stranger.sock.close()
        self._reject(stranger)

    def _reject(self, stranger: Stranger) -> None:
        self.rejected[stranger.addr] += 1
        total = sum(self.rejected.values())
        if total >= 2 * self.told:
            self.told = total
            self.tell(dict(self.rejected.most_common(NAMED)))

    async def _hear(self, stranger: Stranger) -> None:
        stranger.has_begun = True
        try:
            channel = await self.tls.accept(stranger.sock)
        except (OSError, ChannelError):
            self._reject(stranger)
            return
        finally:
            self.strangers.remove(stranger)
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        try:
            await self.serve(channel)
        finally:
            self.serving.discard(task)
            await channel.close()

    def words(self) -> str:
        """Return a text with the number and addresses of the rejected connections; "" if none was rejected."""
        named = self.rejected.most_common(NAMED)
        parts = [f"{count} connection{'s' * (count > 1)} from {addr}" for addr, count in named]
        return f"{', '.join(parts)} could not prove to belong to this run" if parts else ""

    async def close(self, patience: float = 0.0) -> None:
        """Stop listening. Wait up to `patience` seconds until members close their connections. Close unauthenticated
        connections at once.
        """
        for sock in self.socks:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        strangers = self.strangers.take_all()
        for stranger in strangers:
            if not stranger.has_begun:
                stranger.sock.close()
        if self.serving and patience:
            await asyncio.wait(set(self.serving), timeout=patience)
        left = {each.task for each in strangers if each.task is not None} | self.serving
        await settled(left, CLOSE_SECONDS)


def is_of_this_machine(addr: str, sock: socket.socket) -> bool:
    """Return whether the socket's peer is a process on this machine."""
    return addr.startswith("127.") or addr in ("::1", sock.getsockname()[0])

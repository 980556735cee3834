"""The neighbour server, which runs on every node. The previous node connects to it to test the network, and node 0
sends checkpoints to it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping
from typing import Callable

from orchestrator.node.agent.channel import Channel, ChannelError, NoAnswerError
from orchestrator.node.agent.listener import Listener
from orchestrator.node.agent.tls import ANSWER_SECONDS, Tls, in_words
from orchestrator.node.system.sockets import ANY_PORT, PADDING, listen, padding_lost, port_of
from orchestrator.protocol.messages import REQUESTS, Answer, Keep, Probe, Probed, Request
from orchestrator.protocol.typed import DamagedError, read, to_json

Taker = Callable[[Keep, Channel], Awaitable[None]]


class NeighbourServer:
    """The server of a node to which other nodes connect, to test the network or to send a checkpoint. `take` receives a
    checkpoint through the sender's channel, and sends the answer.
    """

    def __init__(
        self,
        tls: Tls,
        node_rank: int,
        addrs: tuple[str, ...],
        *,
        take: Taker | None = None,
        tell: Callable[[Mapping[str, int]], None] = lambda counts: None,
    ) -> None:
        """Listen on a free port at these addresses. Raises OSError if no port is free."""
        self.node_rank, self.addrs, self.take = node_rank, addrs, take
        socks = listen(addrs, ANY_PORT)
        self.port = port_of(socks)
        self.listener = Listener(tls, socks, self._serve, tell=tell)

    async def _serve(self, channel: Channel) -> None:
        with contextlib.suppress(ChannelError, OSError):  # the peer has disconnected
            try:
                asked = REQUESTS.read(await channel.answer(ANSWER_SECONDS))
            except DamagedError as error:  # a value exceeds a limit, such as a list of files that is too long
                channel.send(to_json(Answer(str(error))))
                return
            if asked is None or asked.to != self.node_rank:  # the peer looked for another node at this address
                channel.send(to_json(Probed(f"this is node {self.node_rank}", self.node_rank)))
            elif isinstance(asked, Probe):
                channel.send(to_json(Probed(node=self.node_rank, padding=asked.padding)))
            elif isinstance(asked, Keep) and self.take is not None:
                await self.take(asked, channel)

    async def close(self) -> None:
        """Stop listening, and cancel the requests that are in progress."""
        await self.listener.close()


async def probe(tls: Tls, addrs: tuple[str, ...], port: int, node_rank: int) -> str | None:
    """Test whether the next node answers at one of its addresses. Return None if it does, else the problem of each
    address.
    """
    try:
        channel = await request(tls, addrs, port, Probe(node_rank, PADDING))
    except ChannelError as error:
        return str(error)
    where = f"{channel.peer_addr}:{port}"
    try:
        answer = read(Probed, await channel.answer(ANSWER_SECONDS))
    except NoAnswerError as error:
        return f"{where}: {padding_lost(str(error))}"
    except (ChannelError, DamagedError) as error:
        return f"{where}: {error}"
    finally:
        await channel.close()
    return (
        None if answer.node == node_rank and not answer.problem else f"{where}: another node of this run answers there"
    )


async def request(tls: Tls, addrs: tuple[str, ...], port: int, asked: Request) -> Channel:
    """Connect to another node's neighbour server, send the request, and return the channel. Raises ChannelError if
    the server can't be reached.
    """
    problems = []
    for addr in addrs:
        try:
            channel = await tls.connect(addr, port)
        except (OSError, ChannelError, asyncio.TimeoutError) as error:
            problems.append(f"{addr}:{port}: {in_words(error)}")
        else:
            channel.send(asked.to_json())
            return channel
    raise ChannelError("; ".join(problems) or "the node reported no address")

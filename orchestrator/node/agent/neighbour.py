"""Every node's neighbour server: the node before it probes the way there, and node 0 hands node 1 its checkpoints."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping
from typing import Callable

from orchestrator.node.agent.channel import Channel, ChannelError, Message, NoAnswerError
from orchestrator.node.agent.listener import Listener
from orchestrator.node.agent.tls import ANSWER_SECONDS, Tls, in_words
from orchestrator.node.system.sockets import ANY_PORT, PADDING, listen, padding_lost, port_of

Taker = Callable[[Message, Channel], Awaitable[None]]
PROBE = "probe"


class NeighbourServer:
    """The server of one node. `take` gets each request except probes, and the channel for the answers."""

    def __init__(
        self,
        tls: Tls,
        node_rank: int,
        addrs: tuple[str, ...],
        *,
        take: Taker | None = None,
        tell: Callable[[Mapping[str, int]], None] = lambda counts: None,
    ) -> None:
        """Listen at these addresses, on any free port. Raises OSError if there is no free port."""
        self.node_rank, self.addrs, self.take = node_rank, addrs, take
        socks = listen(addrs, ANY_PORT)
        self.port = port_of(socks)
        self.listener = Listener(tls, socks, self._serve, tell=tell)

    async def _serve(self, channel: Channel) -> None:
        with contextlib.suppress(ChannelError, OSError):  # a neighbour that is gone
            message = await channel.answer(ANSWER_SECONDS)
            if (
                message.get("to") != self.node_rank
            ):  # the peer has connected to another node, whose address was redirected to this one
                channel.send({"node": self.node_rank, "problem": f"this is node {self.node_rank}"})
            elif message.get("do") == PROBE:
                channel.send({"node": self.node_rank, "padding": message.get("padding")})
            elif self.take is not None:
                await self.take(message, channel)

    async def close(self) -> None:
        """Stop listening, and end the requests that are under way."""
        await self.listener.close()


async def probe(tls: Tls, addrs: tuple[str, ...], port: int, node_rank: int) -> str | None:
    """Return None if the neighbour answers at one of its addresses, else the problem of each address."""
    try:
        channel = await request(tls, addrs, port, node_rank, {"do": PROBE, "padding": PADDING})
    except ChannelError as error:
        return str(error)
    where = f"{channel.peer_addr}:{port}"
    try:
        answer = await channel.answer(ANSWER_SECONDS)
    except NoAnswerError as error:
        return f"{where}: {padding_lost(str(error))}"
    except ChannelError as error:
        return f"{where}: {error}"
    finally:
        await channel.close()
    is_it = answer.get("node") == node_rank and not answer.get("problem")
    return None if is_it else f"{where}: another node of this run answers there"


async def request(tls: Tls, addrs: tuple[str, ...], port: int, node_rank: int, asked: Message) -> Channel:
    """Return the channel on which the neighbour got this request. Raises ChannelError if it can't be reached."""
    problems = []
    for addr in addrs:
        try:
            channel = await tls.connect(addr, port)
        except (OSError, ChannelError, asyncio.TimeoutError) as error:
            problems.append(f"{addr}:{port}: {in_words(error)}")
        else:
            channel.send({**asked, "to": node_rank})
            return channel
    raise ChannelError("; ".join(problems) or "it reported no address")

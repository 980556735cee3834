"""The door of every node, at which the node before it in the gang knocks, and node 0 hands in its checkpoints.

Who opens says a proof of the run's token and a challenge, and nothing more to one who does not answer that.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable
from typing import Any, Callable

from orchestrator.node.agent.channel import (
    HANDSHAKE_SECONDS,
    MAX_LINE,
    Channel,
    ChannelError,
    Message,
    connect,
    in_words,
    is_proof,
    prove,
)
from orchestrator.node.system.sockets import listen

Taker = Callable[[Message, Channel], Awaitable[None]]


async def open_door(
    token: str, node_rank: int, *, only_loopback: bool, take: Taker | None = None
) -> tuple[asyncio.AbstractServer, int]:
    """A server on any free port, and its port: it says who it is, and gives proven requests to `take`."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel, challenge = Channel(reader, writer), secrets.token_hex(16)
        try:
            writer.write(f"{prove(token, 'neighbour', str(node_rank))} {challenge}\n".encode())
            answer = await asyncio.wait_for(channel.receive(), HANDSHAKE_SECONDS) if take is not None else None
            request = answer and _proven(answer, token, challenge)
            if take is not None and request:
                await take(request, channel)
        except (OSError, ChannelError, asyncio.TimeoutError, asyncio.CancelledError):
            pass  # a stranger, or a neighbour that is gone; or this agent leaves
        finally:
            writer.close()

    sock = listen((0,), only_loopback=only_loopback)
    return await asyncio.start_server(greet, sock=sock, limit=MAX_LINE), int(sock.getsockname()[1])


def _proven(answer: Message, token: str, challenge: str) -> Message | None:
    """The request that somebody of this gang has made; None for a stranger's."""
    text = str(answer.get("request"))
    if not is_proof(answer.get("proof"), prove(token, "request", challenge, text)):
        return None
    request = json.loads(text)
    return request if isinstance(request, dict) else None


async def knock(addrs: tuple[str, ...], port: int, token: str, node_rank: int) -> str | None:
    """None when the neighbour's door answers at one of its addresses, else what went wrong at each."""
    try:
        channel, _ = await _enter(addrs, port, token, node_rank)
    except ChannelError as error:
        return str(error)
    channel.writer.close()
    return None


async def ask(addrs: tuple[str, ...], port: int, token: str, node_rank: int, request: dict[str, Any]) -> Channel:
    """The channel on which the neighbour has this request; ChannelError when it can't be reached."""
    channel, challenge = await _enter(addrs, port, token, node_rank)
    text = json.dumps(request)
    channel.send({"request": text, "proof": prove(token, "request", challenge, text)})
    return channel


async def _enter(addrs: tuple[str, ...], port: int, token: str, node_rank: int) -> tuple[Channel, str]:
    """(the channel, the challenge) of the first address at which the neighbour has proved itself."""
    problems = []
    for addr in addrs:
        try:
            channel = await connect(addr, port)
        except (OSError, asyncio.TimeoutError) as error:
            problems.append(f"{addr}:{port}: {in_words(error)}")
            continue
        try:
            line = await asyncio.wait_for(channel.reader.readline(), HANDSHAKE_SECONDS)
        except (OSError, asyncio.TimeoutError, ValueError) as error:
            channel.writer.close()
            problems.append(f"{addr}:{port}: {in_words(error)}")
            continue
        proof, _, challenge = line.decode("utf-8", "replace").strip().partition(" ")
        if is_proof(proof, prove(token, "neighbour", str(node_rank))):
            return channel, challenge
        channel.writer.close()
        problems.append(f"{addr}:{port}: something else answers there")
    raise ChannelError("; ".join(problems) or "it reported no address")

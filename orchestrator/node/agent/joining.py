"""The way to the gang's leader: its ports follow from the credentials, and a member that answers there is it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Callable

from orchestrator.node.agent.channel import Channel, ChannelError
from orchestrator.node.agent.leader_server import introduce
from orchestrator.node.agent.tls import Tls, in_words
from orchestrator.protocol.gang import Hello, gang_ports
from orchestrator.protocol.task import NodeTask

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # between two rounds of dialling
PREFERENCE_SECONDS = 0.2  # how long an address is waited for that stands before one which has answered

Tries = dict["asyncio.Task[Channel]", tuple[int, int]]


async def join(task: NodeTask, tls: Tls, hello_at: Callable[[str], Awaitable[Hello]]) -> Channel:
    """Return the channel to the leader, which has admitted this node; ChannelError says what is in the way, by address.

    `hello_at` is given the own address by which node 0 was reached. It dials again after a pause because there is
    nothing to wait on but a port on another machine.
    """
    end, pause = time.monotonic() + task.join_timeout, FIRST_PAUSE
    ports = gang_ports(task.credentials, task.port_range)
    while True:
        try:
            return await _joined(task, tls, ports, hello_at)
        except ChannelError as error:
            if time.monotonic() + pause >= end:
                host = f"node {task.node_rank} ({task.host})"
                raise ChannelError(f"{host} can't reach node 0 ({task.hosts[0]}): {error}") from error
        await asyncio.sleep(pause)
        pause = min(LONGEST_PAUSE, pause * 1.5)


async def _joined(
    task: NodeTask, tls: Tls, ports: tuple[int, ...], hello_at: Callable[[str], Awaitable[Hello]]
) -> Channel:
    channel = await dial(tls, task.leader_addrs, ports)
    try:
        await introduce(channel, await hello_at(channel.own_addr))
    except BaseException:
        await channel.close()
        raise
    return channel


async def dial(tls: Tls, addrs: tuple[str, ...], ports: tuple[int, ...]) -> Channel:
    """Return a channel to a member at one of the addresses and ports, which are all tried at once.

    Where several answer it is the one of the first address: so all nodes take the same one, if they can. Raises
    ChannelError with what went wrong, by address, when none does.
    """
    tries: Tries = {
        asyncio.create_task(tls.connect(addr, port)): (rank, port) for rank, addr in enumerate(addrs) for port in ports
    }
    best: asyncio.Task[Channel] | None = None
    pending, end = set(tries), float("inf")
    try:
        while pending and (best is None or any(tries[each][0] < tries[best][0] for each in pending)):
            patience = None if best is None else max(0.0, end - time.monotonic())
            done, pending = await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            answered = [each for each in done if _has_answered(each)]
            if answered and best is None:
                end = time.monotonic() + PREFERENCE_SECONDS
            best = min([*answered, *([best] if best else [])], key=lambda each: tries[each], default=None)
    finally:
        for attempt in tries:
            if attempt is not best:
                attempt.add_done_callback(_close)  # not cut short: node 0 would take this node for a stranger
    if best is None:
        raise ChannelError(_problems(tries, addrs))
    return best.result()


def _close(attempt: asyncio.Task[Channel]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().writer.transport.abort()


def _has_answered(attempt: asyncio.Task[Channel]) -> bool:
    """Tell whether it has; an error that is none of the way there is raised."""
    error = attempt.exception()
    if error is not None and not isinstance(error, (OSError, ChannelError, asyncio.TimeoutError)):
        raise error
    return error is None


def _problems(tries: Tries, addrs: tuple[str, ...]) -> str:
    ports: dict[str, list[str]] = {}
    for attempt, (rank, port) in tries.items():
        ports.setdefault(f"{addrs[rank]}: {in_words(attempt.exception() or OSError())}", []).append(str(port))
    return "; ".join(f"{what} (ports {', '.join(those)})" for what, those in ports.items())

"""Connects to the gang's leader. The run's credentials determine the leader's ports. If a member of the run answers on
one of these ports, it is the leader.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable
from typing import Callable

from orchestrator.node.agent.channel import Channel, ChannelError
from orchestrator.node.agent.leader_service import HELLO_SECONDS, LEADER
from orchestrator.node.agent.tls import Tls, in_words
from orchestrator.protocol.gang import Hello, gang_ports
from orchestrator.protocol.messages import Admission, Introduction
from orchestrator.protocol.task import NodeTask
from orchestrator.protocol.typed import read, to_json

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # between two rounds of dialling
SLOW_SECONDS = 1.0  # then the next port is tried too, because another program may listen on the first and never answer
MOST_NAMED = 3  # the number of ports that an error message names
LATE_SECONDS = 5.0  # after this time the reason why a node has not joined is reported
PREFERENCE_SECONDS = 0.2  # after one address has answered, wait this long for addresses that precede it in the list


async def join(
    task: NodeTask, tls: Tls, hello_at: Callable[[str], Awaitable[Hello]], tell: Callable[[str], None] = lambda _: None
) -> Channel:
    """Try to connect to the leader until it has admitted this node, and return the channel.

    If this takes longer than LATE_SECONDS, `tell` receives the reason, and later each new reason. `hello_at` receives
    the local address of the connection to node 0. There is a pause before each new try, because no event reports that a
    port of another machine has opened. If the time for joining has passed, raises ChannelError with the problem of each
    address.
    """
    end, pause = time.monotonic() + task.join_timeout, FIRST_PAUSE
    ports = gang_ports(task.credentials, task.port_range)
    late = _Late(tell)
    while True:
        try:
            return await late.watched(_joined(task, tls, ports, hello_at))
        except ChannelError as error:
            late.note(str(error))
            if time.monotonic() + pause >= end:
                host = f"node {task.node_rank} ({task.host})"
                raise ChannelError(f"{host} can't reach node 0 ({task.hosts[0]}): {error}") from error
        await asyncio.sleep(pause)
        pause = min(LONGEST_PAUSE, pause * 1.5)


async def introduce(channel: Channel, hello: Hello) -> None:
    """Send this node's hello message to the leader. Raises ChannelError with the reason if the leader does not admit
    this node.
    """
    channel.send(to_json(Introduction(LEADER, hello)))
    answer = read(Admission, await channel.answer(HELLO_SECONDS), lenient=True)
    if answer.joined != hello.node_rank:
        raise ChannelError(f"node 0: {answer.refused or 'another program answers at its port'}")


class _Late:
    """Reports why a node has not joined, once LATE_SECONDS have passed."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell, self.told, self.begun = tell, "", time.monotonic()

    def note(self, why: str) -> None:
        """Report the reason if LATE_SECONDS have passed and the reason is new."""
        if time.monotonic() - self.begun >= LATE_SECONDS and why != self.told:
            self.told = why
            self.tell(why)

    async def watched(self, work: Awaitable[Channel]) -> Channel:
        """Return the result of `work`. If it takes longer than LATE_SECONDS, report this, because a network may drop
        packets silently.
        """
        loop = asyncio.get_running_loop()
        due = max(0.0, self.begun + LATE_SECONDS - time.monotonic())
        timer = loop.call_later(due, lambda: None if self.told else self.note(f"no answer within {LATE_SECONDS:g} s"))
        try:
            return await work
        finally:
            timer.cancel()


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
    """Dial all addresses at once. Return a channel to the leader at one of them.

    If several addresses answer, the first of the list is used, so that all nodes use the same address if possible.
    Raises ChannelError with the problem of each address if no address answers.
    """
    tries = {asyncio.create_task(_at(tls, addr, ports)): rank for rank, addr in enumerate(addrs)}
    best: asyncio.Task[Channel] | None = None
    pending, end = set(tries), float("inf")
    try:
        while pending and (best is None or any(tries[each] < tries[best] for each in pending)):
            patience = None if best is None else max(0.0, end - time.monotonic())
            done, pending = await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            answered = [each for each in done if _problem_of(each) is None]
            if answered and best is None:
                end = time.monotonic() + PREFERENCE_SECONDS
            best = min([*answered, *([best] if best else [])], key=lambda each: tries[each], default=None)
    finally:
        _leave(each for each in tries if each is not best)
    if best is None:
        raise ChannelError("; ".join(filter(None, map(_problem_of, tries))))
    return best.result()


async def _at(tls: Tls, addr: str, ports: tuple[int, ...]) -> Channel:
    """Return a channel to a member of the run at this address. If a port fails or is slow, try the next port too."""
    tries: dict[asyncio.Task[Channel], int] = {}
    pending: set[asyncio.Task[Channel]] = set()
    problems: dict[str, list[int]] = {}
    found: asyncio.Task[Channel] | None = None
    try:
        while found is None and (pending or len(tries) < len(ports)):
            if len(tries) < len(ports):
                port = ports[len(tries)]
                attempt = asyncio.create_task(tls.connect(addr, port))
                tries[attempt] = port
                pending.add(attempt)
            patience = SLOW_SECONDS if len(tries) < len(ports) else None
            done, pending = await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            for attempt in done:
                problem = _problem_of(attempt)
                if problem is None:
                    found = attempt
                else:
                    problems.setdefault(problem, []).append(tries[attempt])
    finally:
        _leave(each for each in tries if each is not found)
    if found is None:
        raise ChannelError("; ".join(f"{addr}: {what} ({_in_words(of)})" for what, of in problems.items()))
    return found.result()


def _in_words(ports: list[int]) -> str:
    few = f"ports {', '.join(map(str, ports))}"
    return few if len(ports) <= MOST_NAMED else f"{len(ports)} ports from {min(ports)} to {max(ports)}"


def _problem_of(attempt: asyncio.Task[Channel]) -> str | None:
    """Return why a connection attempt has failed; None if it has succeeded. An error that does not come from the
    network is raised.
    """
    error = attempt.exception()
    if error is not None and not isinstance(error, (OSError, ChannelError, asyncio.TimeoutError)):
        raise error
    return None if error is None else in_words(error)


def _leave(attempts: Iterable[asyncio.Task[Channel]]) -> None:
    """Close the channels of these connection attempts. An unfinished attempt is not cancelled, but closed once it has
    authenticated itself, because node 0 would count a cancelled one as a failure to authenticate.
    """
    for attempt in attempts:
        attempt.add_done_callback(_close)


def _close(attempt: asyncio.Task[Channel]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().writer.transport.abort()

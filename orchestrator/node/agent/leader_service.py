"""Runs the gang's leader on node 0: accepts the members' connections, and passes their messages and the time to the
Leader, which does no I/O itself. A member's first message is its hello message. Its later messages are reports. Node
0's own agent is a member too, over a pair of sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Callable

from orchestrator.node.agent.channel import CLOSE_SECONDS, Channel, ChannelError, Message, pair, settled
from orchestrator.node.agent.checkpoints import saved
from orchestrator.node.agent.leader import Leader
from orchestrator.node.agent.listener import Listener
from orchestrator.node.agent.phases import Phase
from orchestrator.node.agent.presence import HEARTBEAT_SECONDS
from orchestrator.node.agent.tls import Tls
from orchestrator.node.system.event_log import EventLog
from orchestrator.node.system.host import listening_addresses
from orchestrator.node.system.open_files import allow_connections
from orchestrator.node.system.sockets import listen, port_of
from orchestrator.node.system.threads import in_thread
from orchestrator.protocol.events import Listening, Strangers
from orchestrator.protocol.gang import Hello, gang_ports
from orchestrator.protocol.messages import Admission, Introduction, LeaderHeartbeat, Order, Report, read_report
from orchestrator.protocol.task import NodeTask
from orchestrator.protocol.typed import read, to_json

LEADER = "leader"  # the receiver that an introduction names
HELLO_SECONDS = 20.0
TICK_SECONDS = 0.25
CLOSE_PATIENCE = 6.0  # seconds for the members to receive the outcome and leave
LINGER_SECONDS = 15.0  # seconds for which nodes that join late still receive the outcome


class LeaderService:
    """The running leader of a gang, with the server to which the nodes connect, and the task that lets the leader
    handle time-outs.
    """

    def __init__(self, task: NodeTask, tls: Tls | None, events: EventLog) -> None:
        self.task, self.tls, self.events = task, tls, events
        self.members = Members(
            on_join=self._joined,
            on_message=lambda node, message: self.leader.received(node, message, time.monotonic()),
            on_left=lambda node, reason: self.leader.left(node, reason, time.monotonic()),
        )
        self.listener: Listener | None = None
        self.own: set[asyncio.Task[None]] = set()  # the tasks that serve node 0's own connection
        self.addrs: tuple[str, ...] = ()  # the addresses at which the leader listens
        self.complete = asyncio.Event()
        self.leader = Leader(
            task, send=self.members.send, record=events.write, progress=lambda: saved.progress(task),
            strangers=lambda: self.listener.words() if self.listener is not None else "", started=time.monotonic(),
        )  # fmt: skip

    async def open(self) -> Channel:
        """Listen for the other nodes, if any, on the first free port of the gang's ports. Return the channel for node
        0's own agent.

        Raises OSError if all ports are taken, or if this machine can't hold a connection to every node.
        """
        if self.tls is not None:
            self.addrs = await in_thread(listening_addresses, self.task.leader_addrs, self.task.interface)
            allow_connections(self.task.nnodes, self.task.nnodes * len(self.addrs))
            socks = listen(self.addrs, gang_ports(self.task.credentials, self.task.port_range))
            self.events.write(Listening(port_of(socks), self.addrs))
            self.listener = Listener(
                self.tls, socks, self.members.serve, members=self.task.nnodes * len(socks),
                tell=lambda counts: self.events.write(Strangers("gang", counts)),
            )  # fmt: skip
        mine, leaders = await pair()
        self.own.add(asyncio.create_task(self._hear_own(leaders)))
        self.clock = asyncio.create_task(self._keep_time())
        return mine

    async def _hear_own(self, channel: Channel) -> None:
        try:
            await self.members.serve(channel)
        finally:
            await channel.close()

    def _joined(self, hello: Hello, reached_at: str) -> None:
        self.leader.joined(hello, time.monotonic(), reached_at)
        if len(self.leader.roster.hellos) == self.task.nnodes:
            self.complete.set()

    async def _keep_time(self) -> None:
        beat = 0.0
        while self.leader.phase is not Phase.ENDED:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            self.leader.tick(now)
            if now >= beat:
                beat = now + HEARTBEAT_SECONDS
                for node in self.leader.roster.hellos:
                    self.members.send(node, LeaderHeartbeat())

    async def close(self) -> None:
        """Stop once the members have received the outcome and left, but at the latest after a time-out."""
        self.clock.cancel()
        if len({*self.leader.roster.hellos, *self.leader.presence.lost}) == self.task.nnodes:
            self.complete.set()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.complete.wait(), LINGER_SECONDS)
        if self.listener is not None:
            await self.listener.close(patience=CLOSE_PATIENCE)
        await settled(self.own, CLOSE_SECONDS)


class Members:
    """The members that have joined. `on_join` receives each member's hello message, and the address at which the member
    has reached node 0.
    """

    def __init__(
        self, on_join: Callable[[Hello, str], None], on_message: Callable[[int, Report], None],
        on_left: Callable[[int, str], None],
    ) -> None:  # fmt: skip
        self.on_join, self.on_message, self.on_left = on_join, on_message, on_left
        self.members: dict[int, Channel] = {}

    async def serve(self, channel: Channel) -> None:
        """Receive a member's messages until it leaves or breaks the protocol. If a peer is refused, it gets the
        reason.
        """
        try:
            hello = self._admitted(channel, await channel.answer(HELLO_SECONDS))
        except ChannelError as error:
            channel.send(to_json(Admission(refused=str(error))))
            return
        channel.send(to_json(Admission(hello.node_rank)))
        node, reason = hello.node_rank, "its agent closed the connection"
        self.on_join(hello, channel.own_addr)
        try:
            while (line := await channel.receive()) is not None:
                if (report := read_report(line)) is not None:
                    self.on_message(node, report)
        except ChannelError as error:
            reason = f"it sent {error}"
        self.on_left(node, reason)

    def _admitted(self, channel: Channel, first: Message) -> Hello:
        """Check a peer's first message, and return the hello message in it. Raises ChannelError if the message has no
        valid hello message, or if an agent of the same node has joined already.
        """
        said = read(Introduction, first, lenient=True)
        if said.to != LEADER:  # the peer wanted another listener, but its connection was redirected to this one
            raise ChannelError("the connection was not meant for node 0")
        if (member := said.hello) is None:
            raise ChannelError("the first message of this node has another version")
        if self.members.setdefault(member.node_rank, channel) is not channel:
            raise ChannelError("this node has joined already")
        return member

    def send(self, node: int, order: Order) -> None:
        """Send an order to a member. If the member has not joined or has left, do nothing."""
        if node in self.members:
            self.members[node].send(order.to_json())

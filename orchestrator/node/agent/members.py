"""The agents that have joined a gang's leader. A member's first message is its hello message. Its later messages are
reports, which are passed to the leader.
"""

from __future__ import annotations

from typing import Callable

from orchestrator.node.agent.channel import Channel, ChannelError, Message
from orchestrator.protocol.gang import Hello
from orchestrator.protocol.messages import Admission, Introduction, Order, Report, read_report
from orchestrator.protocol.typed import read, to_json

HELLO_SECONDS = 20.0
LEADER = "leader"


class Members:
    """The members that have joined. `on_join` receives each member's hello message, and the address at which the member
    has reached node 0.
    """

    def __init__(
        self,
        on_join: Callable[[Hello, str], None],
        on_message: Callable[[int, Report], None],
        on_left: Callable[[int, str], None],
    ) -> None:
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


async def introduce(channel: Channel, hello: Hello) -> None:
    """Send this node's hello message to the leader. Raises ChannelError with the reason if the leader does not admit
    this node.
    """
    channel.send(to_json(Introduction(LEADER, hello)))
    answer = read(Admission, await channel.answer(HELLO_SECONDS), lenient=True)
    if answer.joined != hello.node_rank:
        raise ChannelError(f"node 0: {answer.refused or 'another program answers at its port'}")

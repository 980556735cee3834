"""Node 0's ear and clock for the leader: what the pure Leader decides on is brought to it here."""

from __future__ import annotations

import asyncio
import contextlib
import time

from orchestrator.node.agent import channel, saved
from orchestrator.node.agent.leader import HEARTBEAT_SECONDS, Leader, Phase
from orchestrator.node.system.event_log import EventLog
from orchestrator.node.system.sockets import listen
from orchestrator.protocol.gang import Hello
from orchestrator.protocol.task import NodeTask

TICK_SECONDS = 0.25
CLOSE_PATIENCE = 6.0  # seconds for the members to hear the last word and go
LINGER_SECONDS = 15.0  # so that a node that joins a gang which has failed already hears of it


class Lead:
    """The running leader of a gang: its server, its decisions, its clock."""

    def __init__(self, task: NodeTask, events: EventLog) -> None:
        self.task, self.events = task, events
        self.server = channel.LeaderServer(task.token)
        self.complete = asyncio.Event()
        self.leader = Leader(
            task,
            send=self.server.send,
            record=events.write,
            progress=lambda: saved.progress(task),
            started=time.monotonic(),
        )

    async def open(self) -> None:
        """Listen on the first free of the gang's ports; OSError when all are taken."""
        sock = listen(self.task.ports, only_loopback=self.task.only_loopback)
        self.events.write("listening", port=sock.getsockname()[1])
        await self.server.open(
            sock,
            on_join=self._joined,
            on_message=lambda node, message: self.leader.received(node, message, time.monotonic()),
            on_left=lambda node, reason: self.leader.left(node, reason, time.monotonic()),
        )
        self.clock = asyncio.create_task(self._keep_time())

    def _joined(self, hello: Hello) -> None:
        self.leader.joined(hello, time.monotonic())
        if len(self.leader.hellos) == self.task.nnodes:
            self.complete.set()

    async def _keep_time(self) -> None:
        beat = 0.0
        while self.leader.phase is not Phase.ENDED:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            self.leader.tick(now)
            if now >= beat:
                beat = now + HEARTBEAT_SECONDS
                for node in self.leader.hellos:
                    self.server.send(node, {"kind": "heartbeat"})

    async def close(self) -> None:
        """Stop when the members have been told and have gone; none is waited for longer than it may take."""
        self.clock.cancel()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.complete.wait(), LINGER_SECONDS)
        await self.server.close(patience=CLOSE_PATIENCE)

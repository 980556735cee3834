"""A member's way into the gang: dial node 0 until its leader answers, or until the join time-out ends."""

from __future__ import annotations

import asyncio
import time

from orchestrator.node import gang
from orchestrator.wire import Hello, NodeTask

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0


async def join(task: NodeTask, hello: Hello) -> gang.Channel:
    """The channel to the leader; ChannelError says what is in the way, by address, when the time-out ends.

    It dials again after a pause because there is nothing to wait on but a port on another machine.
    """
    addrs = ("127.0.0.1",) if task.node_rank == 0 else task.leader_addrs
    end, pause = time.monotonic() + task.join_timeout, FIRST_PAUSE
    while True:
        try:
            return await gang.dial(addrs, task.ports, task.token, hello)
        except gang.ChannelError as error:
            if time.monotonic() + pause >= end:
                where = f"node {task.node_rank} ({hello.host}) can't reach node 0 ({task.hosts[0]})"
                raise gang.ChannelError(f"{where}: {error}") from error
        await asyncio.sleep(pause)
        pause = min(LONGEST_PAUSE, pause * 1.5)

"""One per node, on the host: take a NodeTask, join the gang, run the launcher, forward signals, keep the record.

A single loop reads one inbox, into which the leader, the launcher, the signals and the clock put their messages.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from typing import Any

from orchestrator.node.agent import channel as gang
from orchestrator.node.agent import neighbour
from orchestrator.node.agent.channel import join
from orchestrator.node.agent.checkpoint_replica import Keeper, SecondCopy
from orchestrator.node.agent.leader import HEARTBEAT_SECONDS
from orchestrator.node.agent.leader_service import Lead
from orchestrator.node.agent.ranks import Ranks
from orchestrator.node.system.event_log import EventLog
from orchestrator.node.system.host import addresses, cores, gpus, network_environment, nproc_here
from orchestrator.node.system.orphans import adopt_orphans, reap_orphans
from orchestrator.node.system.processes import end_descendants, end_marked, identify
from orchestrator.node.system.threads import in_thread
from orchestrator.protocol.files import write_json
from orchestrator.protocol.gang import Hello
from orchestrator.protocol.layout import node_folder, output_folder
from orchestrator.protocol.ranks import EXIT_REQUEUE
from orchestrator.protocol.task import NodeTask, copies_checkpoints

Message = dict[str, Any]


class Agent:
    """The agent of one node, from its start to its exit code."""

    def __init__(self, task: NodeTask) -> None:
        self.node_dir = node_folder(task.run_dir, task.node_rank)
        self.nproc = nproc_here(task.nproc)
        self.task = task
        self.events = EventLog(f"{self.node_dir}/events.jsonl", task.node_rank)
        self.inbox: asyncio.Queue[tuple[str, Message]] = asyncio.Queue()
        self.ranks = Ranks(task, self.nproc, self.events, self._tell, self._hear_launcher, self._begin)
        self.channel: gang.Channel | None = None
        self.heard = self.ticked = time.monotonic()
        self.outcome: tuple[str, int] | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self.lead: Lead | None = None
        self.untold: list[Message] = []

    async def run(self) -> int:
        """Take part in the gang until its end; the exit code is the same on all nodes."""
        os.makedirs(output_folder(self.task.run_dir), exist_ok=True)
        self._introduce_to_record()
        adopt_orphans()
        self._listen_for_signals()
        keeper = Keeper(self.task) if copies_checkpoints(self.task) and self.task.node_rank == 1 else None
        entrance, dial_port = await neighbour.open_door(
            self.task.token,
            self.task.node_rank,
            only_loopback=self.task.only_loopback,
            take=keeper.take if keeper else None,
        )
        self._begin(self.ranks.start())
        if self.task.node_rank == 0:
            await self._lead()
        self._begin(self._join(dial_port))
        self._begin(self._tick())
        while self.outcome is None:
            source, message = await self.inbox.get()
            await getattr(self, f"_from_{source}")(message)
        entrance.close()
        return await self._leave()

    def _hear_launcher(self, message: Message) -> None:
        self.inbox.put_nowait(("launcher", message))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Let it run beside the loop; what it raises ends the agent, loudly."""
        task = asyncio.create_task(work)
        self.tasks.append(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.inbox.put_nowait(("bug", {"error": f"{type(error).__name__}: {error}"}))

    async def _from_bug(self, message: Message) -> None:
        self._give_up("failed", "infra", f"an error in orch's agent itself: {message['error']}")

    def _tell(self, message: Message) -> None:
        """Tell the leader, as soon as there is one."""
        if self.channel is None:
            self.untold.append(message)
        else:
            self.channel.send(message)

    # -- beginning

    def _introduce_to_record(self) -> None:
        me = identify(os.getpid())
        host = socket.gethostname()
        identity = {"pid": os.getpid(), "started": me.started if me else 0, "host": host}
        write_json(f"{self.node_dir}/agent.json", identity, durable=False)
        python = ".".join(map(str, sys.version_info[:3]))
        self.events.write(
            "agent_started",
            **identity,
            start=self.task.start,
            python=python,
            cores=cores(),
            gpus=gpus(),
            nproc=self.nproc,
        )

    def _listen_for_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            name = signal.Signals(number).name
            loop.add_signal_handler(number, self.inbox.put_nowait, ("signal", {"name": name}))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        loop.add_signal_handler(signal.SIGCHLD, lambda: reap_orphans(self.ranks.launcher.pid))

    async def _lead(self) -> None:
        lead = Lead(self.task, self.events)
        try:
            await lead.open()
        except OSError as error:
            self._give_up("failed", "infra", str(error))
        else:
            self.lead = lead

    async def _join(self, dial_port: int) -> None:
        own = ("127.0.0.1",) if self.task.only_loopback else addresses()
        hello = Hello(self.task.node_rank, socket.gethostname(), self.nproc, own, dial_port)
        try:
            channel = await join(self.task, hello)
        except gang.ChannelError as error:
            self.inbox.put_nowait(("clock", {"unreachable": str(error)}))
            return
        self.heard, self.channel = time.monotonic(), channel
        self.events.write("reached_leader", addr=channel.peer_addr)
        for message in self.untold:
            channel.send(message)
        await self._hear(channel)

    def _give_up(self, outcome: str, cause: str, reason: str) -> None:
        self.events.write("gave_up", outcome=outcome, cause=cause, reason=reason)
        self.outcome = (outcome, EXIT_REQUEUE if outcome == "preempted" else 1)

    # -- the inbox

    async def _hear(self, channel: gang.Channel) -> None:
        try:
            while (message := await channel.receive()) is not None:
                self.heard = time.monotonic()
                self.inbox.put_nowait(("leader", message))
            reason = "node 0 closed the connection"
        except gang.ChannelError as error:
            reason = f"node 0 sent {error}"
        self.inbox.put_nowait(("clock", {"lost": reason}))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS / 2)
            self.inbox.put_nowait(("clock", {}))

    async def _from_clock(self, message: Message) -> None:
        now = time.monotonic()
        if (
            slept := now - self.ticked
        ) > HEARTBEAT_SECONDS:  # it did not run meanwhile (stopped, suspended): heard nobody
            self.heard = min(now, self.heard + slept)
            self.ranks.slept(slept)
        self.ticked = now
        if reason := message.get("unreachable"):
            self._give_up("failed", "infra", reason)
        if self.channel is not None:
            self.channel.send({"kind": "heartbeat"})
            silent = now - self.heard
            late = f"no heartbeat for {silent:.0f} s" if silent > self.task.link_timeout else ""
            if reason := message.get("lost") or late:
                self._give_up("failed", "infra", f"node {self.task.node_rank} lost node 0: {reason}")
        self.ranks.report_stalls(now)

    async def _from_launcher(self, message: Message) -> None:
        await self.ranks.report(message)

    async def _from_signal(self, message: Message) -> None:
        cancel = self._cancelled()
        self.events.write("signal", **message, cancelled=cancel is not None)
        if self.channel is None:
            outcome = "preempted" if cancel is None else "cancelled"
            self._give_up(outcome, outcome, f"{message['name']} before this node had joined")
        else:
            now = bool(cancel and cancel.get("now"))
            self.channel.send({"kind": "signal", **message, "cancelled": cancel is not None, "now": now})

    def _cancelled(self) -> Message | None:
        """Return the record of a cancel, which is written before its signal is sent; None when there is none."""
        try:
            with open(f"{self.task.run_dir}/cancel.json", encoding="utf-8") as file:
                data: Message = json.load(file)
                return data
        except (OSError, ValueError):
            return None

    async def _from_leader(self, message: Message) -> None:
        assert self.channel is not None
        kind = message["kind"]
        if kind == "check":
            addrs, port = tuple(message["addrs"]), message["port"]
            way = await neighbour.knock(addrs, port, self.task.token, (self.task.node_rank + 1) % self.task.nnodes)
            if way is None and copies_checkpoints(self.task) and self.task.node_rank == 0:
                self._begin(SecondCopy(self.task, self.events.write).keep_up(addrs, port))
            here = f"node {self.task.node_rank} ({socket.gethostname()})"
            error = way and f"{here} can't reach its neighbour {message['host']}: {way}"
            self.channel.send({"kind": "path", "error": error})
        elif kind == "prepare":
            self.ranks.prepare(message["attempt"])
        elif kind == "go":
            self._go(message)
        elif kind == "stop":
            self.ranks.stop(message["grace"])
        elif kind == "stacks":
            self.ranks.ask_for_stacks()
        elif kind == "bye":
            self.outcome = (message["outcome"], message["code"])

    def _go(self, message: Message) -> None:
        assert self.channel is not None
        master_addr = self.channel.peer_addr
        if self.task.node_rank == 0 and self.task.nnodes > 1:
            master_addr = self._own_address()
        network = network_environment(master_addr, self.task.interface)
        self.ranks.go(message["binding"], master_addr, message["master_port"], network)

    def _own_address(self) -> str:
        """Return the address that the other nodes use for node 0, if it is one of its own."""
        own = addresses()
        named = [addr for addr in self.task.leader_addrs if addr in own]
        return named[0] if named else own[0] if own else "127.0.0.1"

    # -- the end

    async def _leave(self) -> int:
        """End what this node still runs, prove it, and go together with the others."""
        assert self.outcome is not None
        outcome, code = self.outcome
        left = await self.ranks.end()
        killed, survivors = await in_thread(end_marked, self.task.run_id, self.task.node_rank)
        stray = await in_thread(end_descendants, os.getpid())
        killed += stray
        self.events.write("agent_ended", outcome=outcome, code=code, swept=killed,
                          survivors=[s.pid for s in survivors], containers=left)  # fmt: skip
        self.events.close()
        for task in self.tasks:
            task.cancel()
        if self.channel is not None:
            await self.channel.close()
        if self.lead is not None:
            await self.lead.close()
        return code


def run_agent(path: str) -> int:
    """Run the agent of the task in this file, which is removed at once: it holds the token and the secrets."""
    try:
        with open(path, encoding="utf-8") as file:
            task = NodeTask.from_json(json.load(file))
        os.unlink(path)
        os.makedirs(node_folder(task.run_dir, task.node_rank), exist_ok=True)
    except (OSError, ValueError, TypeError, KeyError) as error:
        print(f"orch: can't take the task {path}: {error}", file=sys.stderr)
        return 1
    return asyncio.run(Agent(task).run())

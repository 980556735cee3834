"""The agent of one node: takes a NodeTask, joins the run's other nodes (the gang), runs the launcher and records
events.

A single loop reads one inbox. The leader, the launcher, the signal handlers and the clock put their messages into it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Callable

from orchestrator.node.agent.channel import Channel, ChannelError
from orchestrator.node.agent.checkpoints.replica import ReplicaSender
from orchestrator.node.agent.checkpoints.transfer import FAILURES, Receiver, parcel_of, send
from orchestrator.node.agent.joining import introduce, join
from orchestrator.node.agent.leader_service import LeaderService
from orchestrator.node.agent.metrics.loop import WrittenMetrics
from orchestrator.node.agent.neighbour import NeighbourServer, probe
from orchestrator.node.agent.presence import HEARTBEAT_SECONDS
from orchestrator.node.agent.ranks import Ranks
from orchestrator.node.agent.sampling.loop import Sampling
from orchestrator.node.agent.tls import NoTlsError, Tls
from orchestrator.node.container.prepare import remove_compiled
from orchestrator.node.system.event_log import EventLog
from orchestrator.node.system.host import (
    cores,
    gpus_of,
    interface_address,
    listening_addresses,
    network_environment,
    nproc_here,
    with_given_gpus,
)
from orchestrator.node.system.orphans import adopt_orphans
from orchestrator.node.system.processes import end_descendants, end_marked, identify
from orchestrator.node.system.shortages import shortage
from orchestrator.node.system.threads import in_thread, keep_a_thread
from orchestrator.outcome import rules
from orchestrator.outcome.rule import Rule
from orchestrator.protocol import events, messages
from orchestrator.protocol.cancelling import keep_room_for_cancel
from orchestrator.protocol.checkpoints.formats import Format
from orchestrator.protocol.files import write_json
from orchestrator.protocol.gang import Hello
from orchestrator.protocol.layout import lost_file, node_folder, output_folder
from orchestrator.protocol.places.devices import GIVEN, words_of
from orchestrator.protocol.ranks import EXIT_REQUEUE
from orchestrator.protocol.reading import MOST_RECORD, MOST_WORD, read_json, read_object
from orchestrator.protocol.schedulers import STOP_SIGNALS
from orchestrator.protocol.task import NodeTask, copies_checkpoints
from orchestrator.protocol.typed import DamagedError, Handlers, read

Message = dict[str, Any]
_ORDERS = Handlers(messages.Order)


class Agent:
    """The agent of one node: its state, its loop, and its handlers of messages."""

    def __init__(self, task: NodeTask, on_outcome: Callable[[Agent, int], None] = lambda *_: None) -> None:
        """Prepare the agent. `on_outcome` receives the exit code once it is certain, shortly before the agent ends."""
        task = with_given_gpus(task)
        self.node_dir = node_folder(task.run_dir, task.node_rank)
        self.on_outcome = on_outcome
        self.nproc = nproc_here(task)
        self.task = task
        self.events = EventLog(f"{self.node_dir}/events.jsonl", task.node_rank)
        self.inbox: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        self.ranks = Ranks(task, self.nproc, self.events, self._tell, self._queue_report, self._in_background)
        self.sampling = Sampling(
            task, lambda: self.ranks.started, self._tell, self.events.write, self.ranks.watch_start
        )
        self.metrics = WrittenMetrics(task, lambda: self.ranks.started, self.events.write)
        self.channel: Channel | None = None
        self.tls: Tls | None = None  # None if there is one node
        self.neighbours: NeighbourServer | None = None
        self.sender: ReplicaSender | None = None  # on node 0, if checkpoints are copied
        self.receiver = Receiver(task)
        self.heard = self.ticked = time.monotonic()
        self.outcome: tuple[str, int] | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self.lead: LeaderService | None = None
        self.untold: list[messages.Report] = []

    async def run(self) -> int:
        """Take part in the gang (the run's agents, one on each node) until the gang ends. Return the exit code, which
        is the same on all nodes.
        """
        keep_a_thread()
        os.makedirs(output_folder(self.task.run_dir), exist_ok=True)
        self._introduce_to_record()
        adopt_orphans()
        self._listen_for_signals()
        try:
            self.tls = Tls.of(self.task.credentials) if self.task.nnodes > 1 else None
        except NoTlsError as error:
            self._give_up(rules.UNPROVED, f"this node can't prove itself to the others: {error}")
            return await self._leave()
        self._in_background(self.ranks.start())
        self._in_background(self._lead() if self.task.node_rank == 0 else self._join())
        self._in_background(self._tick())
        if self.task.sampling:
            self._in_background(self.sampling.run())
        if self.task.node_rank == 0:
            self._in_background(self.metrics.run())
        while self.outcome is None:
            work = await self.inbox.get()
            await work()
        self.on_outcome(self, self.outcome[1])
        return await self._leave()

    def _queue_report(self, report: messages.Report) -> None:
        self.inbox.put_nowait(partial(self._handle_report, report))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as a task beside the agent's loop. If `work` raises an exception, the agent ends with an error
        message.
        """
        task = asyncio.create_task(work)
        self.tasks.append(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            lack = shortage(error)
            words = f"an error in orch's agent itself: {type(error).__name__}: {error}"
            self.inbox.put_nowait(partial(self._fail, f"{socket.gethostname()}: {lack}" if lack else words))

    def _tell(self, report: messages.Report) -> None:
        """Send a report to the leader. If this node has not joined a leader yet, keep the report until then."""
        if self.channel is None:
            self.untold.append(report)
        else:
            self.channel.send(report.to_json())

    # -- beginning

    def _introduce_to_record(self) -> None:
        me = identify(os.getpid())
        host = socket.gethostname()
        pid, started = os.getpid(), me.started if me else 0
        identity = {"pid": pid, "started": started, "host": host, "start": self.task.start}
        write_json(f"{self.node_dir}/agent.json", identity, durable=False)
        keep_room_for_cancel(self.node_dir)
        python = ".".join(map(str, sys.version_info[:3]))
        names = tuple(words_of(self.task.env.get(GIVEN, "")))
        facts: dict[str, Any] = {"python": python, "cores": cores(), "gpus": gpus_of(self.task), "gpu_names": names}
        self.events.write(events.AgentStarted(host, pid, started, self.task.start, nproc=self.nproc, **facts))

    def _listen_for_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            name = signal.Signals(number).name
            loop.add_signal_handler(number, self.inbox.put_nowait, partial(self._receive_signal, name))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        loop.add_signal_handler(signal.SIGCHLD, self.ranks.reap_orphans)

    async def _lead(self) -> None:
        """Run the gang's leader in this process, and join the gang as its first member through an in-process
        connection.
        """
        lead = LeaderService(self.task, self.tls, self.events)
        try:
            channel = await lead.open()
        except OSError as error:
            self.inbox.put_nowait(partial(self._fail, str(error)))
            return
        self.lead = lead
        await introduce(channel, await self._hello(lead.addrs))
        await self._take_part(channel)

    async def _join(self) -> None:
        assert self.tls is not None
        try:
            channel = await join(
                self.task, self.tls, self._hello_at, lambda why: self.events.write(events.CantReach(why))
            )
        except ChannelError as error:
            self.inbox.put_nowait(partial(self._fail, str(error)))
            return
        await self._take_part(channel)

    async def _take_part(self, channel: Channel) -> None:
        self.heard, self.channel = time.monotonic(), channel
        self.events.write(events.ReachedLeader(channel.peer_addr))
        for report in self.untold:
            channel.send(report.to_json())
        await self._read_orders(channel)

    async def _hello_at(self, own_addr: str) -> Hello:
        """Return this node's hello message for the leader. The node reaches node 0 from the local address `own_addr`,
        and its ranks use the same address for gloo.
        """
        if self.task.only_loopback:
            return await self._hello((own_addr,))
        named = interface_address(self.task.interface) if self.task.interface else None
        if named is None and own_addr.startswith("127."):  # this node is on node 0's machine, but other nodes are not
            return await self._hello(await in_thread(listening_addresses, (socket.gethostname(),), None))
        return await self._hello((named or own_addr,))

    async def _hello(self, addrs: tuple[str, ...]) -> Hello:
        """Return this node's hello message for the leader. If the run has other nodes, the message has the addresses at
        which they can connect to this node, to test the network and to send checkpoints.
        """
        me = (self.task.node_rank, socket.gethostname(), self.nproc)
        if self.tls is None:
            return Hello(*me)
        if self.neighbours is not None:
            await self.neighbours.close()
        self.neighbours = NeighbourServer(
            self.tls, self.task.node_rank, addrs, take=self.receiver.take,
            tell=lambda counts: self.events.write(events.Strangers("neighbour", counts)),
        )  # fmt: skip
        return Hello(*me, addrs, self.neighbours.port)

    def _give_up(self, rule: Rule, reason: str) -> None:
        self.events.write(events.GaveUp(rule.outcome, rule.cause, reason))
        self.outcome = (rule.outcome, EXIT_REQUEUE if rule is rules.STOPPED else 1)

    # -- the inbox

    async def _read_orders(self, channel: Channel) -> None:
        try:
            while (line := await channel.receive()) is not None:
                self.heard = time.monotonic()
                self.inbox.put_nowait(partial(self._obey, line))
            reason = "node 0 closed the connection"
        except ChannelError as error:
            reason = f"node 0 sent {error}"
        self.inbox.put_nowait(partial(self._lose_leader, reason))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS / 2)
            self.inbox.put_nowait(self._look)

    async def _look(self) -> None:
        """Send a heartbeat, check this node's ranks, and end the agent if node 0 has been silent for too long."""
        now = time.monotonic()
        if (
            slept := now - self.ticked
        ) > HEARTBEAT_SECONDS:  # this process was stopped or suspended, so it received no messages
            self.heard = min(now, self.heard + slept)
            self.ranks.slept(slept)
        self.ticked = now
        if self.channel is not None:
            self.channel.send(messages.Heartbeat().to_json())
            silent = now - self.heard
            if silent > self.task.link_timeout:
                await self._lose_leader(f"no heartbeat for {silent:.0f} s")
        await self._hear_of_losses(now)
        self.ranks.look(now)

    async def _hear_of_losses(self, now: float) -> None:
        """Act on the deaths of other agents that the submitting machine has found. The gang does not notice the death
        of an agent that has not joined, because there is no connection to it.
        """
        found = read_object(lost_file(self.task.run_dir), MOST_WORD)
        if found is None or (losses := read(messages.Losses, found, lenient=True)).start != self.task.start:
            return
        for node in losses.nodes:
            if self.lead is not None and node < self.task.nnodes:
                self.lead.leader.left(node, losses.reason, now)
            elif node == 0 and self.channel is None:
                await self._lose_leader(losses.reason)

    async def _fail(self, reason: str) -> None:
        self._give_up(rules.LOST, reason)

    async def _lose_leader(self, reason: str) -> None:
        await self._fail(f"node {self.task.node_rank} lost node 0: {reason}")

    async def _receive_signal(self, name: str) -> None:
        """Stop all ranks. Only SIGUSR1, which orch itself never asks for, is left to ranks that handle it."""
        cancel = self._cancelled()
        if name == "SIGUSR1" and cancel is None and self.ranks.handle(signal.SIGUSR1):
            return
        self.events.write(events.SignalReceived(name, cancel is not None))
        self.ranks.signal = name
        if self.channel is None:
            self._give_up(rules.STOPPED if cancel is None else rules.CANCELLED, f"{name} before this node had joined")
        else:
            now = bool(cancel and cancel.get("now"))
            self._tell(messages.SignalReceived(name, cancel is not None, now))

    def _cancelled(self) -> dict[str, Any] | None:
        """Return the record that `orch cancel` has written, or None if the run is not cancelled. The command writes
        this record before it signals the agent.
        """
        return read_object(f"{self.task.run_dir}/cancel.json", MOST_WORD)

    async def _handle_report(self, report: messages.Report) -> None:
        """Handle a report of this node's launcher."""
        await self.ranks.report(report)
        self.metrics.note(self.ranks.started)

    # -- orders from the leader

    async def _obey(self, line: Message) -> None:
        """Carry out an order from the leader. If the order is malformed, report a failure of this node, and the leader
        ends the run.
        """
        try:
            order = messages.ORDERS.read(line)
        except DamagedError as error:
            self.ranks.trouble(f"the order {line['kind']!r} of node 0 is not understood: {error}"[:500], rules.UNPROVED)
            return
        handler = _ORDERS.get(type(order))
        work = handler(self, order) if handler is not None else None
        if work is not None:
            self._in_background(work)  # in a task, because a transfer takes longer than the heartbeats' time-out

    @_ORDERS.add
    def _prepare(self, order: messages.Prepare) -> None:
        if self.sender is not None:
            self.sender.begin_attempt()
        self.ranks.prepare(order)

    @_ORDERS.add
    def _go(self, order: messages.Go) -> None:
        """Start the ranks. They reach node 0 at the address that the order contains. The address of the agent's own
        connection is not used, because this connection may lead through a relay.

        A batch file gets no interface that orch has chosen, because it starts ranks on machines that orch does not see.
        """
        is_chosen = self.task.interface is not None or not self.task.program.own_ranks
        network = network_environment(order.master_addr, self.task.interface) if is_chosen else {}
        self.ranks.go(replace(order, network=network))

    @_ORDERS.add
    def _stop(self, order: messages.Stop) -> None:
        self.ranks.stop(order)

    def _pass_on(self, order: messages.Order) -> None:
        self.ranks.launcher.send(order)

    _ORDERS.update(dict.fromkeys((messages.ReportStacks, messages.FindModule), _pass_on))

    @_ORDERS.add
    def _bye(self, order: messages.Bye) -> None:
        self.outcome = (order.outcome, order.code)

    @_ORDERS.add
    async def _check_way(self, order: messages.Check) -> None:
        """Test whether this node can connect to the next node, and report the result to the leader. If the test
        succeeds on node 0, and this run copies checkpoints to node 1, begin to copy them.
        """
        assert self.tls is not None
        assert self.channel is not None
        way = await probe(self.tls, order.addrs, order.port, (self.task.node_rank + 1) % self.task.nnodes)
        if way is None and copies_checkpoints(self.task) and self.task.node_rank == 0:
            self.sender = ReplicaSender(self.task, self.tls, self.events.write)
            self._in_background(self.sender.keep_up(order.addrs, order.port))
            self._in_background(self.sender.keep_up_with_others(order.addrs, order.port))
        here = f"node {self.task.node_rank} ({socket.gethostname()})"
        self._tell(messages.WayTried(way and f"{here} can't reach its neighbour {order.host}: {way}"))

    @_ORDERS.add
    async def _hand_over(self, order: messages.HandOver) -> None:
        """On node 0, send the checkpoint from which the attempt resumes to the nodes that lack it. If a transfer fails,
        report which node failed.
        """
        assert self.tls is not None
        name, to, given, problem = order.checkpoint, list(order.to), list[int](), ""
        saved = self.ranks.resumable.get(name)
        # Checkpoints in orch's format are sent to the other ranks by rank 0.
        if saved is not None and saved.format is not Format.ORCH:
            try:
                parcel = await in_thread(parcel_of, name, saved)
                while to:
                    node, addrs, port = to[0]
                    await send(self.tls, (node, addrs, port), parcel, replaces=True)
                    given.append(to.pop(0)[0])
            except FAILURES as error:
                problem = f"can't be given {name}: {error or type(error).__name__}"
        failed = ((to[0][0], problem),) if problem else ()
        self._tell(messages.HandedOver(order.attempt, tuple(given), failed))

    # -- the end of the run

    async def _leave(self) -> int:
        """End the processes that still run on this node, verify that they ended, and exit together with the other
        nodes.
        """
        assert self.outcome is not None
        outcome, code = self.outcome
        left = await self.ranks.end()
        killed, survivors = await in_thread(end_marked, self.task.run_id, self.task.node_rank)
        stray = await in_thread(end_descendants, os.getpid())
        killed += stray
        if self.task.node_rank == 0:
            await self.metrics.end()
        pids = tuple(each.pid for each in survivors)
        self.events.write(events.AgentEnded(outcome, code, killed, pids, tuple(left), self.sampling.end()))
        self.events.close()
        if code != EXIT_REQUEUE:
            await in_thread(remove_compiled, self.task)
        for task in self.tasks:
            task.cancel()
        if self.neighbours is not None:
            await self.neighbours.close()
        if self.channel is not None:
            await self.channel.close()
        if self.lead is not None:
            await self.lead.close()
        return code


def run_agent(path: str) -> int:
    """Run the agent for the task in the file `path`, and return the agent's exit code. The file is deleted at once,
    because it holds credentials and secrets.
    """
    try:
        task = NodeTask.from_json(read_json(path, MOST_RECORD))
        os.unlink(path)
        os.makedirs(node_folder(task.run_dir, task.node_rank), exist_ok=True)
    except (OSError, ValueError, TypeError, KeyError) as error:
        print(f"orch: can't take the task {path}: {error}", file=sys.stderr)
        return 1
    return asyncio.run(_run(task))


async def _run(task: NodeTask) -> int:
    return await Agent(task).run()  # created in the loop, because before Python 3.10 a queue belongs to one loop

"""One per node, on the host: take a NodeTask, join the gang, run the launcher, forward signals, keep the record.

A single loop reads one inbox, into which the leader, the launcher, the signals and the clock put their messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from dataclasses import asdict, replace
from typing import Any

from orchestrator.node import child, door, gang
from orchestrator.node.background import in_thread
from orchestrator.node.beats import BeatReader
from orchestrator.node.engine import EngineError
from orchestrator.node.enter import container_id, pinned, refusal
from orchestrator.node.events import EventLog, write_whole
from orchestrator.node.inputs import InputError, place
from orchestrator.node.join import join
from orchestrator.node.lead import Lead
from orchestrator.node.leader import BEAT_SECONDS, BEATS_MISSED
from orchestrator.node.orphans import adopt_orphans, reap_orphans
from orchestrator.node.preflight import addresses, cores, gpus, network_environment, network_here, nproc_here
from orchestrator.node.processes import end_descendants, end_marked, identify
from orchestrator.node.second import Keeper, SecondCopy
from orchestrator.wire import EXIT_REQUEUE, Hello, NodeTask, attempt_folder, copies_checkpoints, node_folder

Message = dict[str, Any]
KILL_MARGIN = 5.0


class Agent:
    """The agent of one node, from its start to its exit code."""

    def __init__(self, task: NodeTask) -> None:
        self.node_dir = node_folder(task.run_dir, task.node_rank)
        self.nproc = nproc_here(task.nproc)
        self.task = replace(task, launcher=resolve_launcher(task))
        self.events = EventLog(f"{self.node_dir}/events.jsonl", task.node_rank)
        self.inbox: asyncio.Queue[tuple[str, Message]] = asyncio.Queue()
        self.launcher = self._new_launcher()
        self.channel: gang.Channel | None = None
        self.running: set[int] = set()
        self.attempt = task.attempt
        self.heard = time.monotonic()
        self.stop_deadline: float | None = None
        self.outcome: tuple[str, int] | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self.lead: Lead | None = None
        self.launcher_gone = False
        self.untold: list[Message] = []
        self.beats = BeatReader(task.hang)

    async def run(self) -> int:
        """Take part in the gang until its end; the exit code is the same on all nodes."""
        self._introduce_to_record()
        adopt_orphans()
        self._listen_for_signals()
        keeper = Keeper(self.task) if copies_checkpoints(self.task) and self.task.node_rank == 1 else None
        entrance, dial_port = await door.open_door(
            self.task.token,
            self.task.node_rank,
            only_loopback=self.task.only_loopback,
            take=keeper.take if keeper else None,
        )
        self._begin(self._start_launcher())
        if self.task.node_rank == 0:
            await self._lead()
        self._begin(self._join(dial_port))
        self._begin(self._tick())
        while self.outcome is None:
            source, message = await self.inbox.get()
            await getattr(self, f"_from_{source}")(message)
        entrance.close()
        return await self._leave()

    def _new_launcher(self) -> child.LauncherProcess:
        return child.LauncherProcess(self.task, lambda message: self.inbox.put_nowait(("launcher", message)))

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
        write_whole(f"{self.node_dir}/agent.json", identity)
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
        loop.add_signal_handler(signal.SIGCHLD, lambda: reap_orphans(self.launcher.pid))

    async def _start_launcher(self) -> None:
        """Place the inputs, then start the launcher; orders that come meanwhile wait for it."""
        try:
            places = {}
            for item in self.task.inputs:
                places[f"ORCH_INPUT_{item.name}"] = await in_thread(place, item, self.task.inputs_dir)
            self.launcher.task = replace(self.task, env={**self.task.env, **places})
            await self.launcher.start(self.nproc, self.attempt)
        except (InputError, EngineError) as error:
            self._trouble(str(error), "infra")
        except OSError as error:
            self._trouble(f"the launcher can't be started with {self.task.python}: {error}", "user_error")

    def _trouble(self, reason: str, cause: str) -> None:
        """This node can't take part: say so in the record and to the leader."""
        self.events.write("trouble", reason=reason, cause=cause)
        self._tell({"kind": "trouble", "reason": reason, "cause": cause})

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
            await asyncio.sleep(BEAT_SECONDS / 2)
            self.inbox.put_nowait(("clock", {}))

    async def _from_clock(self, message: Message) -> None:
        now = time.monotonic()
        if reason := message.get("unreachable"):
            self._give_up("failed", "infra", reason)
        if self.channel is not None:
            self.channel.send({"kind": "beat"})
            silent = now - self.heard
            late = f"no beat for {silent:.0f} s" if silent > BEAT_SECONDS * BEATS_MISSED else ""
            if reason := message.get("lost") or late:
                self._give_up("failed", "infra", f"node {self.task.node_rank} lost node 0: {reason}")
        self._look_at_beats(now)
        if self.stop_deadline is not None and now > self.stop_deadline:
            self.stop_deadline = None
            self.events.write("launcher_killed", reason="its ranks did not end in time")
            self.launcher.kill()

    def _look_at_beats(self, now: float) -> None:
        """Tell the leader of ranks that stand still."""
        if not self.running or self.stop_deadline is not None:
            return
        for stall in self.beats.new_stalls(attempt_folder(self.node_dir, self.attempt), self.running, now):
            self.events.write("stall", attempt=self.attempt, full=stall.is_full, **asdict(stall))
            self._tell({"kind": "stall", "attempt": self.attempt, "full": stall.is_full, **asdict(stall)})

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
        """The record of a cancel, which is written before its signal is sent; None when there is none."""
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
            way = await door.knock(addrs, port, self.task.token, (self.task.node_rank + 1) % self.task.nnodes)
            if way is None and copies_checkpoints(self.task) and self.task.node_rank == 0:
                self._begin(SecondCopy(self.task, self.events.write).keep_up(addrs, port))
            here = f"node {self.task.node_rank} ({socket.gethostname()})"
            error = way and f"{here} can't reach its neighbour {message['host']}: {way}"
            self.channel.send({"kind": "path", "error": error})
        elif kind == "prepare":
            await self._prepare(message["attempt"])
        elif kind == "go":
            self._go(message)
        elif kind == "stop":
            if self.running:
                self.launcher.send({"kind": "stop", "grace": message["grace"]})
                self.stop_deadline = time.monotonic() + message["grace"] + KILL_MARGIN
        elif kind == "stacks":
            self.launcher.send({"kind": "stacks"})
        elif kind == "bye":
            self.outcome = (message["outcome"], message["code"])

    async def _prepare(self, attempt: int) -> None:
        self.attempt, self.stop_deadline = attempt, None
        self.beats = BeatReader(self.task.hang)
        if self.launcher_gone:
            self.launcher_gone = False
            self.task = pinned(self.task, self.launcher.container)
            self.launcher = self._new_launcher()
            self._begin(self._start_launcher())
        os.makedirs(attempt_folder(self.node_dir, attempt), exist_ok=True)
        self.launcher.send({"kind": "prepare", "attempt": attempt})

    def _go(self, message: Message) -> None:
        assert self.channel is not None
        binding, master_addr = message["binding"], self.channel.peer_addr
        if self.task.node_rank == 0 and self.task.nnodes > 1:
            master_addr = self._own_address()
        network = network_environment(master_addr, self.task.interface)
        offset, nproc = binding["rank_offset"], binding["nproc"]
        self.running = set(range(offset, offset + nproc))
        if self.task.launcher in ("torchrun", "accelerate"):
            self.running = {offset}
        self.events.write(
            "started", attempt=self.attempt, ranks=[offset, offset + nproc], world_size=binding["world_size"],
            master_addr=master_addr, master_port=message["master_port"], network=network,
        )  # fmt: skip
        self.launcher.send({
            "kind": "go", "binding": binding, "master_addr": master_addr,
            "master_port": message["master_port"], "network": network,
        })  # fmt: skip

    def _own_address(self) -> str:
        """Node 0's ranks use the address that the other nodes use, if it is one of its own."""
        own = addresses()
        named = [addr for addr in self.task.leader_addrs if addr in own]
        return named[0] if named else own[0] if own else "127.0.0.1"

    async def _from_launcher(self, message: Message) -> None:
        kind = message.pop("kind")
        if kind == "imported" and message.get("failed"):
            self._trouble(message["failed"], "user_error")
        elif kind == "imported" and self.launcher.container:
            self._look_into_container(message)
        elif kind == "exit":
            self.running.discard(message["rank"])
            if message["rank"] == 0 and message["code"] == 0:
                self._mark_done()
            self.events.write("rank_exit", **message)
            self._tell({"kind": "exit", **message})
        elif kind == "idle":
            await self._became_idle(message)
        elif kind == "ready":
            self._tell({"kind": kind, **message, "image": self.launcher.container.get("image_id")})
        elif kind == "stacks":
            self._tell({"kind": kind, **message})
        elif kind == "gone":
            await self._lost_launcher(message)
        else:
            self.events.write(f"launcher_{kind}", **message)

    def _mark_done(self) -> None:
        """Rank 0 has ended well: its marker is half of what a success needs, the nodes' words the other."""
        marker = {"attempt": self.attempt, "time": time.time()}
        try:
            write_whole(f"{self.task.run_dir}/rank0.done", marker)
        except OSError as error:
            self.events.write("disk_full", path=f"{self.task.run_dir}/rank0.done", error=error.strerror)
            self.events.close()  # frees what was kept for the last words
            with contextlib.suppress(OSError):  # then the verdict says that the marker is missing
                write_whole(f"{self.task.run_dir}/rank0.done", marker)

    def _look_into_container(self, message: Message) -> None:
        """The launcher runs in its container: record which that is, and see that it is in the node's network."""
        known = {name: value for name, value in self.launcher.container.items() if name != "cidfile"}
        self.events.write("container", **known, id=container_id(self.launcher.container["cidfile"]))
        self.events.write("launcher_imported", **message)
        if self.task.nnodes > 1 and message.get("network") != network_here():
            self._trouble(
                "its container is in another network than the node, so no other node can reach MASTER_PORT in it: "
                f"{known['runtime']} is rootless, or DOCKER_HOST names another machine; use podman, or its own daemon",
                "user_error",
            )

    async def _became_idle(self, message: Message) -> None:
        """The attempt's ranks have ended; `message` says who was ended, where only the launcher can tell them apart."""
        self.stop_deadline = None
        killed, survivors = message.get("killed", 0), message.get("survivors", [])
        if "killed" not in message:
            keep = () if self.launcher.pid is None else (self.launcher.pid,)
            killed, left = await in_thread(end_marked, self.task.run_id, self.task.node_rank, keep)
            survivors = [process.pid for process in left]
        if killed or survivors:
            self.events.write("swept", killed=killed, survivors=survivors)
        self._tell({"kind": "idle", "attempt": self.attempt})

    async def _lost_launcher(self, message: Message) -> None:
        """The launcher ended by itself: its ranks are gone with it, which is a failure of this node."""
        self.launcher_gone = True
        code = message["code"]
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        self.events.write("launcher_gone", code=code, tail=message["tail"])
        if not self.running:
            tail = f"; its last words: {message['tail'][-1]}" if message["tail"] else ""
            refused = refusal(self.task, code, message["tail"])
            self._trouble(refused or f"the launcher {how}{tail}", "user_error" if code > 0 else "infra")
            return
        name = signal.Signals(-code).name if code < 0 else None
        for rank in sorted(self.running):
            error = {"type": "LauncherLost", "message": f"the launcher of this node {how}", "traceback": ""}
            report = {"rank": rank, "code": code if code >= 0 else None, "signal": name or "SIGKILL",
                      "attempt": self.attempt, "error": error, "tail": message["tail"], "victim": False}  # fmt: skip
            self.events.write("rank_exit", **report)
            self._tell({"kind": "exit", **report})
        self.running = set()
        await self._became_idle({})

    # -- the end

    async def _leave(self) -> int:
        """End what this node still runs, prove it, and go together with the others."""
        assert self.outcome is not None
        outcome, code = self.outcome
        await self.launcher.end()
        killed, survivors = await in_thread(end_marked, self.task.run_id, self.task.node_rank)
        stray = await in_thread(end_descendants, os.getpid())
        killed += stray
        self.events.write("agent_ended", outcome=outcome, code=code, swept=killed,
                          survivors=[s.pid for s in survivors], containers=self.launcher.left)  # fmt: skip
        self.events.close()
        for task in self.tasks:
            task.cancel()
        if self.channel is not None:
            await self.channel.close()
        if self.lead is not None:
            await self.lead.close()
        return code


def resolve_launcher(task: NodeTask) -> str:
    """fork or exec where the job says auto: a command is exec'd, and so is Python on a node with GPUs."""
    if task.launcher != "auto":
        return task.launcher
    return "exec" if task.program.kind == "command" or gpus() else "fork"


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

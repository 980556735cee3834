"""The ranks of one node, from attempt to attempt: their launcher is started and ordered about, its reports understood.

What the rest of the gang must know of is told to the leader; everything goes into the node's record.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Coroutine
from dataclasses import asdict, replace
from typing import Any, Callable

from orchestrator.node.agent import launcher_process
from orchestrator.node.agent.stall_detector import HeartbeatReader, read_heartbeat
from orchestrator.node.container.engine import EngineError
from orchestrator.node.container.prepare import container_id, pinned, refusal
from orchestrator.node.system.event_log import EventLog
from orchestrator.node.system.host import gpus, network_here
from orchestrator.node.system.inputs import InputError, place
from orchestrator.node.system.processes import end_marked
from orchestrator.node.system.threads import in_thread
from orchestrator.protocol.files import read_regular, write_atomic, write_json
from orchestrator.protocol.layout import attempt_folder, node_folder, result_file
from orchestrator.protocol.task import NodeTask

Message = dict[str, Any]
KILL_MARGIN = 5.0
MOST_RESULT = 64 << 20


class Ranks:
    """The ranks of this node, and the launcher that they are children of.

    `tell` takes what is for the leader, `hear` what the launcher says, which comes back as `report`, and `begin` work
    that goes on beside.
    """

    def __init__(
        self,
        task: NodeTask,
        nproc: int,
        events: EventLog,
        tell: Callable[[Message], None],
        hear: Callable[[Message], None],
        begin: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self.task, self.nproc, self.events = replace(task, launcher=resolve_launcher(task)), nproc, events
        self.tell, self.hear, self.begin = tell, hear, begin
        self.node_dir = node_folder(task.run_dir, task.node_rank)
        self.attempt, self.store_addr = task.attempt, ""
        self.running: set[int] = set()
        self.heartbeats = HeartbeatReader(task.hang)
        self.launcher = launcher_process.LauncherProcess(self.task, hear)
        self.is_launcher_gone = False
        self.stop_deadline: float | None = None

    async def start(self) -> None:
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
        """Say in the record and to the leader that this node can't take part."""
        self.events.write("trouble", reason=reason, cause=cause)
        self.tell({"kind": "trouble", "reason": reason, "cause": cause})

    # -- orders

    def prepare(self, attempt: int, store_addr: str) -> None:
        """Make ready for an attempt, with a new launcher where the last one is gone."""
        self.attempt, self.store_addr, self.stop_deadline = attempt, store_addr, None
        self.heartbeats = HeartbeatReader(self.task.hang)
        if self.is_launcher_gone:
            self._renew_launcher()
        elif self.launcher.is_dismissed:
            return  # when it is gone, there is another, for this attempt
        elif not self.launcher.serves(attempt):
            self.begin(self.launcher.dismiss())
            return
        self._make_ready()

    def _renew_launcher(self) -> None:
        self.is_launcher_gone = False
        self.task = pinned(self.task, self.launcher.container)
        self.launcher = launcher_process.LauncherProcess(self.task, self.hear)
        self.begin(self.start())

    def _make_ready(self) -> None:
        folder = attempt_folder(self.node_dir, self.attempt)
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            self._trouble(f"the folder {folder} can't be made: {error.strerror}", "infra")
            return
        self.launcher.send({"kind": "prepare", "attempt": self.attempt, "store_addr": self.store_addr})

    def go(self, binding: Message, master_addr: str, master_port: int, network: dict[str, str]) -> None:
        """Start the attempt's ranks."""
        offset, nproc = binding["rank_offset"], binding["nproc"]
        self.running = set(range(offset, offset + nproc))
        if self.task.launcher in ("torchrun", "accelerate"):
            self.running = {offset}
        where = {"master_addr": master_addr, "master_port": master_port, "network": network}
        ranks = [offset, offset + nproc]
        self.events.write("started", attempt=self.attempt, ranks=ranks, world_size=binding["world_size"], **where)
        self.launcher.send({"kind": "go", "binding": binding, **where})

    def stop(self, grace: float) -> None:
        """Have the ranks stop at their next boundary; the launcher is killed where that takes too long."""
        if self.running:
            self.launcher.send({"kind": "stop", "grace": grace})
            self.stop_deadline = time.monotonic() + grace + KILL_MARGIN

    def ask_for_stacks(self) -> None:
        """Have the launcher say where its ranks stand."""
        self.launcher.send({"kind": "stacks"})

    def slept(self, seconds: float) -> None:
        """Hold nothing against the ranks of a time in which this agent did not run: they hardly did."""
        self.heartbeats.detector.forgive(seconds)
        if self.stop_deadline is not None:
            self.stop_deadline += seconds

    def report_stalls(self, now: float) -> None:
        """Tell of ranks that stand still, and end those that did not stop in time."""
        if self.running and self.stop_deadline is None:
            for stall in self.heartbeats.new_stalls(attempt_folder(self.node_dir, self.attempt), self.running, now):
                self.events.write("stall", attempt=self.attempt, full=stall.is_full, **asdict(stall))
                self.tell({"kind": "stall", "attempt": self.attempt, "full": stall.is_full, **asdict(stall)})
        if self.stop_deadline is not None and now > self.stop_deadline:
            self.stop_deadline = None
            self.events.write("launcher_killed", reason="its ranks did not end in time")
            self.launcher.kill()

    # -- reports

    async def report(self, message: Message) -> None:
        """Take what the launcher says."""
        kind = message.pop("kind")
        if kind == "imported" and message.get("failed"):
            self._trouble(message["failed"], "user_error")
        elif kind == "imported" and self.launcher.container:
            self._look_into_container(message)
        elif kind == "exit":
            self.running.discard(message["rank"])
            if message["rank"] == 0:
                message |= self._saves(message["code"])
            if message["rank"] == 0:
                self._take_result()
            if message["rank"] == 0 and message["code"] == 0:
                self._mark_done()
            self.events.write("rank_exit", **message)
            self.tell({"kind": "exit", **message})
        elif kind == "idle":
            await self._became_idle(message)
        elif kind == "ready":
            self.tell({"kind": kind, **message, "image": self.launcher.container.get("image_id")})
        elif kind == "stacks":
            self.tell({"kind": kind, **message})
        elif kind == "trouble":
            self._trouble(message["reason"], "infra")
        elif kind == "gone":
            await self._lost_launcher(message)
        else:
            self.events.write(f"launcher_{kind}", **message)

    async def end(self) -> list[str]:
        """End the launcher, and with it the ranks; return what could not be removed of its container."""
        await self.launcher.end()
        return self.launcher.left

    def _saves(self, code: int | None) -> Message:
        """Return how many of rank 0's checkpoints were not written, and why the last was not: its last heartbeat."""
        last = read_heartbeat(f"{attempt_folder(self.node_dir, self.attempt)}/beat_0")
        if last is None or not last.get("saves_failed") or (code != 0 and last.get("phase") != "done"):
            return {}
        return {name: last.get(name) for name in ("saves", "saves_failed", "unsaved")}

    def _take_result(self) -> None:
        """Take what rank 0 has left as its result in a container to where it is looked for."""
        if self.task.container is None:
            return
        place = result_file(self.task.run_dir)
        try:
            result = read_regular(result_file(attempt_folder(self.node_dir, self.attempt)), MOST_RESULT)
        except OSError:  # there is none, or it is a trap
            return
        try:
            write_atomic(place, result, durable=False)
        except OSError as error:
            self.events.write("disk_full", path=place, error=error.strerror)

    def _mark_done(self) -> None:
        """Mark that rank 0 has ended well: this is half of what a success needs, the nodes' words the other."""
        marker = {"attempt": self.attempt, "time": time.time()}
        try:
            write_json(f"{self.task.run_dir}/rank0.done", marker, durable=False)
        except OSError as error:
            self.events.write("disk_full", path=f"{self.task.run_dir}/rank0.done", error=error.strerror)
            self.events.close()  # frees what was kept for the last words
            with contextlib.suppress(OSError):  # then the verdict says that the marker is missing
                write_json(f"{self.task.run_dir}/rank0.done", marker, durable=False)

    def _look_into_container(self, message: Message) -> None:
        """Record in which container the launcher runs, and see that it is in the node's network."""
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
        """Note that the attempt's ranks have ended; `message` says who was ended, where only the launcher can tell."""
        self.stop_deadline = None
        killed, survivors = message.get("killed", 0), message.get("survivors", [])
        if "killed" not in message:
            keep = () if self.launcher.pid is None else (self.launcher.pid,)
            killed, left = await in_thread(end_marked, self.task.run_id, self.task.node_rank, keep)
            survivors = [process.pid for process in left]
        if killed or survivors:
            self.events.write("swept", killed=killed, survivors=survivors)
        self.tell({"kind": "idle", "attempt": self.attempt})

    async def _lost_launcher(self, message: Message) -> None:
        """Report that the launcher ended by itself: its ranks are gone with it, which is a failure of this node."""
        self.is_launcher_gone = True
        if self.launcher.is_dismissed and not self.running:
            self._renew_launcher()
            self._make_ready()
            return
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
            self.tell({"kind": "exit", **report})
        self.running = set()
        await self._became_idle({})


def resolve_launcher(task: NodeTask) -> str:
    """Return fork or exec where the job says auto: a command is exec'd, and so is Python on a node with GPUs."""
    if task.launcher != "auto":
        return task.launcher
    return "exec" if task.program.kind == "command" or gpus() else "fork"

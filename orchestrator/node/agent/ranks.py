"""Controls the ranks of one node in all attempts: starts their launcher, sends it orders, and handles its reports.

Reports that concern the other nodes are sent to the leader. Every event is written to this node's record.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any, Callable

from orchestrator.node.agent import launcher_process
from orchestrator.node.agent.checkpoints import saved
from orchestrator.node.agent.checkpoints.saved import mark_of
from orchestrator.node.agent.offer import Offer
from orchestrator.node.agent.sampling.loop import Started
from orchestrator.node.agent.stall_detector import HeartbeatReader, read_heartbeat
from orchestrator.node.agent.start_watch import StartWatch
from orchestrator.node.container.engine import EngineError
from orchestrator.node.container.prepare import container_id, pinned, refusal
from orchestrator.node.environments.folder import BrokenEnvironmentError, hold
from orchestrator.node.system.cgroup import oom_kills
from orchestrator.node.system.event_log import EventLog
from orchestrator.node.system.gpus.devices import gpus
from orchestrator.node.system.host import interface_problem, network_here
from orchestrator.node.system.inputs import InputError, place
from orchestrator.node.system.kernel_log import newest_gpu_faults
from orchestrator.node.system.orphans import reap_orphans
from orchestrator.node.system.own_folder import OwnFolder
from orchestrator.node.system.processes import end_marked, is_stopped, state_of
from orchestrator.node.system.setup_lines import setup_failure
from orchestrator.node.system.shortages import shortage
from orchestrator.node.system.signals import is_handled, name_of
from orchestrator.node.system.threads import in_thread
from orchestrator.outcome import rules
from orchestrator.outcome.ends import LOST_LAUNCHER, was_stopped
from orchestrator.outcome.rule import Rule
from orchestrator.outcome.rules import gpu_error_of
from orchestrator.protocol import events, messages
from orchestrator.protocol.checkpoints.checksum import installed
from orchestrator.protocol.checkpoints.search import Saved
from orchestrator.protocol.files import write_atomic, write_json
from orchestrator.protocol.layout import attempt_folder, node_folder, result_file
from orchestrator.protocol.masking import masked_json
from orchestrator.protocol.rank_reports import RankError
from orchestrator.protocol.reading import read_regular
from orchestrator.protocol.samples import Sample
from orchestrator.protocol.task import NodeTask, copies_checkpoints
from orchestrator.protocol.typed import Handlers, converted, read, to_json

KILL_MARGIN = 5.0
CLOCK_STEP = 0.02  # seconds by which the time of a new file may be earlier than the clock
SILENT_TIMES = 6  # factor for `link_timeout`, because a launcher that imports torch from a slow disk answers late
MOST_RESULT = 64 << 20
_WORDS = ("tail", "error", "reason", "failed")  # the fields of a report in which a rank's secret may occur
_HANDLERS = Handlers(messages.Report)
MOST_CHECKPOINTS, MOST_CHARS = 20, 1000  # limits of the report to the leader: checkpoints, and characters of a name


class Ranks:
    """The ranks of this node, and the launcher that starts them.

    `tell` sends a report to the leader. `hear` receives the launcher's reports, and passes them to `report`.
    `in_background` runs a coroutine beside the agent's loop.
    """

    def __init__(
        self, task: NodeTask, nproc: int, events: EventLog, tell: Callable[[messages.Report], None],
        hear: Callable[[messages.Report], None], in_background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:  # fmt: skip
        self.task, self.nproc, self.events = replace(task, launcher=resolve_launcher(task)), nproc, events
        self.tell, self.hear, self.in_background = tell, hear, in_background
        self.node_dir = node_folder(task.run_dir, task.node_rank)
        self.attempt, self.prepared = task.attempt, messages.Prepare(task.attempt)
        self.running: set[int] = set()
        self.begun: int | None = None  # the newest attempt whose ranks the launcher was ordered to start
        self.told_to_stop = self.is_overdue = False  # the ranks were ordered to stop; they did not stop in time
        self.signal = ""  # the last stop signal of this agent, which a scheduler sends to the ranks too
        self.began = 0.0  # the time of the order to start the ranks (monotonic)
        self.offer: Offer | None = None  # only on node 0, if the attempt was offered a checkpoint
        self.orphaned: dict[int, int] = {}  # exit codes of ranks that a dead launcher has not reaped, by rank
        self.started = Started(task.attempt, since=math.inf)
        self.members: set[int] = set()  # the ranks of this node; in `running`, all ranks of torchrun count as one
        self.heartbeats = HeartbeatReader(task.hang, task.attempt)
        self.start_watch = StartWatch()
        # `unused_port`: the store's port, or 0 once a process has connected to it.
        self.master_port, self.unused_port = 0, 0
        self.launcher = launcher_process.LauncherProcess(self.task, hear)
        self.is_launcher_gone = False
        self.oom_kills = oom_kills()  # the number of OOM kills before this attempt
        self.stop_deadline: float | None = None
        self.resumable: dict[str, Saved] = {}  # checkpoints from which this attempt may resume, by name
        watched = [task.run_dir, task.code_dir, self.node_dir]
        self.folders = [OwnFolder(path) for path in watched if f"{path}/".startswith(f"{task.run_dir}/")]
        self.removed: list[str] = []  # the folders that were removed although the run still needs them
        # A descriptor that keeps the environment from being removed until this process ends.
        self.held: int | None = None

    async def start(self) -> None:
        """Prepare the inputs, then start the launcher. Orders that arrive before the launcher runs are queued."""
        try:
            # The environment is checked only at the first start, because later the ranks may have changed it.
            if self.task.environment and self.held is None:
                self.held = await in_thread(hold, self.task.environment)
            places = {}
            for item in self.task.inputs:
                places[f"ORCH_INPUT_{item.name}"] = await in_thread(place, item, self.task.inputs_dir)
            self.launcher.task = replace(self.task, env={**self.task.env, **places})
            await self.launcher.start(self.nproc, self.attempt)
        except (InputError, EngineError, BrokenEnvironmentError) as error:
            self.trouble(str(error), rules.NO_INPUT)
        except (OSError, RuntimeError, MemoryError) as error:
            lack = shortage(error)
            if not lack and not isinstance(error, OSError):
                raise
            rule = rules.NO_ROOM if lack else rules.NO_LAUNCHER
            self.trouble(f"the launcher can't be started with {self.task.python}: {lack or error}", rule)

    def trouble(self, reason: str, rule: Rule, tail: Sequence[str] = ()) -> None:
        """Record and report that this node can't take part. `tail` has the last lines of the launcher's log."""
        self.events.write(events.Troubled(reason, rule.cause, tuple(tail)))
        self.tell(messages.Trouble(reason, rule.cause, tuple(tail)))

    # -- orders

    def prepare(self, order: messages.Prepare) -> None:
        """Prepare an attempt. If the last launcher has ended, start a new launcher."""
        self.attempt, self.prepared, self.stop_deadline = order.attempt, order, None
        self.heartbeats, self.oom_kills = HeartbeatReader(self.task.hang, order.attempt), oom_kills()
        self._look_at_folders()
        if self.removed:
            self.trouble(f"{self.removed[0]} was removed during the run", rules.FOLDER_LOST)
            return
        if self.is_launcher_gone:
            self._renew_launcher()
        elif self.launcher.is_dismissed:
            return  # a new launcher is started for this attempt when the present one has ended
        elif not self.launcher.serves(order.attempt):
            self.in_background(self.launcher.dismiss())
            return
        self._send_prepare()

    def _renew_launcher(self) -> None:
        self.is_launcher_gone = False
        self.task = pinned(self.task, self.launcher.container)
        self.launcher = launcher_process.LauncherProcess(self.task, self.hear)
        self.in_background(self.start())

    def _send_prepare(self) -> None:
        """Create the attempt's folder, and order the launcher to prepare the attempt. If the folder can't be created,
        report a failure.
        """
        folder = attempt_folder(self.node_dir, self.attempt)
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            self.trouble(f"the folder {folder} can't be created: {error.strerror}", rules.NO_ROOM)
            return
        self.launcher.send(self.prepared)

    def go(self, order: messages.Go) -> None:
        """Start the attempt's ranks. If this node has the checkpoint that the order names, the ranks resume from it."""
        offset, nproc = order.binding.rank_offset, order.binding.nproc
        self.running, self.members = (set(range(offset, offset + nproc)) for _ in range(2))
        if self.task.launcher in ("torchrun", "accelerate"):
            self.running = {offset}
        self.started = Started(self.attempt, since=time.time() - CLOCK_STEP)
        self.master_port, self.unused_port = order.master_port, 0
        self.begun, self.told_to_stop, self.is_overdue, self.orphaned = self.attempt, False, False, {}
        self.began = time.monotonic()
        self.events.write(
            events.Started(
                self.attempt, (offset, offset + nproc), order.binding.world_size, len(self.running), order.master_addr,
                order.master_port, order.network,
            )
        )  # fmt: skip
        self.offer = None
        if order.resume_from and offset == 0:
            self.offer = Offer(self.task, self.attempt, order.resume_from, self.resumable, self.events.write)
            self.in_background(self.offer.watch_saves())
        self.launcher.send(replace(order, resume_from=self._place(order.resume_from)))

    def _place(self, checkpoint: str) -> str:
        """Return the path of the named checkpoint, which node 0 may just have sent; "" if this node does not have
        it.
        """
        if checkpoint in self.resumable:
            return self.resumable[checkpoint].path
        place = saved.place_of(self.task, checkpoint) if checkpoint else ""
        return place if os.path.exists(place) else ""

    def stop(self, order: messages.Stop) -> None:
        """Order the ranks to stop at their next step boundary. If this takes too long, the launcher will be killed."""
        if self.running:
            self.told_to_stop = True
            self.launcher.send(order)
            self.stop_deadline = time.monotonic() + order.grace + KILL_MARGIN

    def handle(self, number: int) -> bool:
        """Return True if every rank of this node has a handler of its own for a signal. The handlers of ranks in a
        container are not known, because their process ids are valid only there.
        """
        pids = self.started.pids.values() if self.started.attempt == self.attempt else ()
        return bool(pids) and not self.launcher.container and all(is_handled(pid, number) for pid in pids)

    def watch_start(self, sample: Sample) -> None:
        """Report to the leader if no rank of node 0 has computed for a minute, or if a rank computes again."""
        if self.task.node_rank or (seconds := self.start_watch.add(sample)) is None:
            return
        self.tell(messages.Waits(sample.attempt, seconds, self.unused_port))

    def slept(self, seconds: float) -> None:
        """Exclude a pause of this agent from the ranks' time-outs, because the ranks were usually paused too."""
        self.heartbeats.detector.forgive(seconds)
        if self.stop_deadline is not None:
            self.stop_deadline += seconds
        if self.launcher.asked is not None:
            self.launcher.asked += seconds

    def look(self, now: float) -> None:
        """Report stalled ranks. Kill a launcher that does not respond, and ranks that did not stop in time."""
        self._look_at_folders()
        if self.offer is not None:
            self.offer.look()
        if self.running and self.stop_deadline is None:
            ranks = self.members if self.task.launcher in ("torchrun", "accelerate") else self.running
            for news in self.heartbeats.news(attempt_folder(self.node_dir, self.attempt), ranks, now):
                if isinstance(news, messages.Stalled):
                    # The program chooses the phase's name, so the name may contain a secret.
                    news = replace(news, phase=self.launcher.masked(news.phase))  # noqa: PLW2901
                    if not news.full:  # the leader records a stall that has exceeded its limit
                        self.events.write(converted(news, events.Stalled))
                self.tell(news)
        if self.stop_deadline is not None and now > self.stop_deadline:
            self.stop_deadline, self.is_overdue = None, True
            self.events.write(events.LauncherKilled("its ranks did not end in time"))
            self.launcher.kill()
        if self.running and not self.launcher.ended_for:
            self.launcher.ended_for = self._why_launcher_is_frozen(self.launcher.silence(now))
            if self.launcher.ended_for:
                self.events.write(events.LauncherKilled(self.launcher.ended_for))
                self.launcher.kill()

    def _look_at_folders(self) -> None:
        """Report to the leader if the run's folder on this node was removed, or if a part of the folder that the ranks
        need for a start was removed.
        """
        removed = [folder.path for folder in self.folders if folder.is_removed()]
        if len(removed) > len(self.removed):
            self.removed = removed
            self.tell(messages.FolderLost(removed[0], self.node_dir in removed))

    def _why_launcher_is_frozen(self, silent: float) -> str:
        """Return why a launcher that has not answered for `silent` seconds must be killed; "" if it must not be killed.

        A launcher that waits for a disk is not killed, because it can neither end nor answer before the disk answers.
        """
        if silent <= self.task.link_timeout or self.launcher.pid is None:
            return ""
        if is_stopped(self.launcher.pid):
            return f"was stopped (SIGSTOP) for {silent:.0f} s"
        is_frozen = state_of(self.launcher.pid) != "D" and silent > SILENT_TIMES * self.task.link_timeout
        return f"did not answer for {silent:.0f} s" if is_frozen else ""

    # -- reports

    async def report(self, report: messages.Report) -> None:
        """Handle a report of the launcher. If a report can't be handled, this node reports a failure, and the agent
        continues.

        A launcher in a container may send anything, because anyone may have built the image.
        """
        handler = _HANDLERS.get(type(report))
        if handler is None:
            return
        try:
            work = handler(self, self._masked(report))
            if work is not None:
                await work
        except Exception as error:  # noqa: BLE001 (another process may report anything)
            self.trouble(f"the launcher's report {report.kind!r} is not understood: {error!r}"[:500], rules.UNPROVED)

    def _masked(self, report: messages.Report) -> messages.Report:
        """Return the report with masked secrets, because texts from the ranks and the launcher's log may contain
        secrets.
        """
        values = to_json(report)
        words = {name: masked_json(values[name], self.launcher.masked) for name in _WORDS if name in values}
        return read(type(report), {**values, **words}) if words else report

    @_HANDLERS.add
    def _imported(self, report: messages.Imported) -> None:
        if report.failed:
            self.trouble(report.failed, rules.NO_LAUNCHER)
            return
        if self.launcher.container:
            self._look_into_container(report)
        self.events.write(converted(report, events.LauncherImported))

    @_HANDLERS.add
    def _ready(self, report: messages.Ready) -> None:
        self.in_background(self._became_ready(report))

    @_HANDLERS.add
    def _started(self, report: messages.RanksStarted) -> None:
        self.unused_port = self.master_port if report.holds_port else 0
        self.started = replace(self.started, attempt=report.attempt, pids=dict(report.pids))
        self.events.write(events.LauncherStarted(report.attempt, report.pids))

    @_HANDLERS.add
    def _dialed(self, report: messages.Dialed) -> None:
        self.unused_port = 0

    @_HANDLERS.add
    def _log_failed(self, report: messages.LogFailed) -> None:
        self.events.write(events.LauncherLogError(**to_json(report)))

    def _pass_on(self, report: messages.Report) -> None:
        self.tell(report)

    _HANDLERS.update(dict.fromkeys((messages.StacksFound, messages.ModuleSought), _pass_on))

    @_HANDLERS.add
    def _launcher_trouble(self, report: messages.Trouble) -> None:
        self.trouble(report.reason, rules.NO_ROOM)

    @_HANDLERS.add
    def _note_end(self, report: messages.RankEnded) -> None:
        """Record a rank's end, with the number of its failed saves and the kernel's messages, and report it to the
        leader.
        """
        # The nodes get the order to start at about the same time, so these times can be compared across nodes.
        after = round(time.monotonic() - self.began, 3)
        report = replace(report, after=after, sent=report.sent or self.signal)
        self.running.discard(report.rank)
        self.started = self.started.without(report.rank)
        self._look_at_folders()  # before the exit is reported, because a lost folder may be its cause
        if report.rank == 0:
            with self._going_on("the end of rank 0"):
                if self.offer is not None:
                    self.offer.look()
                report = replace(report, **self._saves(report.code))
                self._take_result()
            if report.code == 0 and not was_stopped(report):
                self._mark_done()
        with self._going_on("a GPU's error"):
            if report.code != 0 and gpu_error_of(report) is not None:
                report = replace(report, kernel=tuple(newest_gpu_faults()))
        self.events.write(converted(report, events.RankExit))
        self.tell(replace(report, left=len(self.running)))

    @contextlib.contextmanager
    def _going_on(self, what: str) -> Iterator[None]:
        """Within the block, which collects details of a rank's end, record errors instead of raising them, so that the
        end itself is still reported.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 (a rank's files may hold anything)
            self.events.write(events.ReportFailed(what, repr(error)[:500]))

    async def _became_ready(self, report: messages.Ready) -> None:
        """Report to the leader that this node is ready, with its checkpoints. If the folder is large, the search for
        checkpoints takes a while.

        The report also names the hash algorithms that both the ranks and the agent can use. The ranks verify
        checkpoints, and the agent verifies received copies.
        """
        if copies_checkpoints(self.task):
            own = installed()
            report = replace(report, checksums=tuple(each for each in report.checksums if each in own))
        self.resumable = await in_thread(saved.resumable, self.task, report.attempt)
        found = [(name, mark_of(each)) for name, each in self.resumable.items() if len(name) < MOST_CHARS]
        self.tell(
            replace(
                report, image=self.launcher.container.get("image_id"), checkpoints=tuple(found[:MOST_CHECKPOINTS]),
                unfit=interface_problem(self.task.interface),
            )
        )  # fmt: skip

    async def end(self) -> list[str]:
        """End the launcher and its ranks. Return the containers that could not be removed."""
        await self.launcher.end()
        return self.launcher.left

    def _saves(self, code: int | None) -> dict[str, Any]:
        """Return how many of rank 0's checkpoints could not be written, and the last error. Both are read from rank 0's
        last heartbeat.
        """
        last = read_heartbeat(f"{attempt_folder(self.node_dir, self.attempt)}/beat_0")
        if last is None or not last.get("saves_failed") or (code != 0 and last.get("phase") != "done"):
            return {}
        saves, failed = (int(last.get(name) or 0) for name in ("saves", "saves_failed"))
        return {"saves": saves, "saves_failed": failed, "unsaved": self.launcher.masked(str(last.get("unsaved") or ""))}

    def _take_result(self) -> None:
        """Copy rank 0's result from the attempt's folder, which is mounted in the container, to the run's folder."""
        if self.task.container is None:
            return
        place = result_file(self.task.run_dir)
        try:
            path = result_file(attempt_folder(self.node_dir, self.attempt))
            result = read_regular(path, MOST_RESULT, self.task.run_dir)
        except OSError:  # there is no result, or the path is a link to another file
            return
        try:
            write_atomic(place, result, durable=False)
        except OSError as error:
            self.events.write(events.DiskFull(place, error.strerror))

    def _mark_done(self) -> None:
        """Write the marker that rank 0 has exited with 0 by itself. A run succeeds if the marker exists and all
        other ranks have exited with 0.
        """
        marker = {"attempt": self.attempt, "time": time.time()}
        try:
            write_json(f"{self.task.run_dir}/rank0.done", marker, durable=False)
        except OSError as error:
            self.events.write(events.DiskFull(f"{self.task.run_dir}/rank0.done", error.strerror))
            self.events.close()  # this frees the disk space that was reserved for the last events
            with contextlib.suppress(OSError):  # if this fails, the run's outcome reports that the marker is missing
                write_json(f"{self.task.run_dir}/rank0.done", marker, durable=False)

    def _look_into_container(self, report: messages.Imported) -> None:
        """Record the launcher's container, and check that the container uses the node's network."""
        known = {name: value for name, value in self.launcher.container.items() if name != "cidfile"}
        self.events.write(events.InContainer(**known, id=container_id(self.launcher.container["cidfile"])))
        if self.task.nnodes > 1 and report.network != network_here():
            self.trouble(
                "its container is in another network than the node, so no other node can reach MASTER_PORT in it: "
                f"{known['runtime']} is rootless, or DOCKER_HOST names another machine; use podman, or its own daemon",
                rules.NO_LAUNCHER,
            )

    @_HANDLERS.add
    async def _became_idle(self, report: messages.RanksIdle) -> None:
        """Record that all ranks of the attempt have ended. If the report's `killed` is None, this agent ends the
        processes that the ranks have left running.
        """
        self.stop_deadline, killed, survivors = None, report.killed, report.survivors
        if self.offer is not None:
            await self.offer.end()
        if killed is None:
            keep = () if self.launcher.pid is None else (self.launcher.pid,)
            killed, left = await in_thread(end_marked, self.task.run_id, self.task.node_rank, keep)
            survivors = tuple(process.pid for process in left)
        if killed or survivors:
            self.events.write(events.CleanedUp(killed or 0, survivors=survivors))
        self.tell(messages.RanksIdle(self.attempt))

    def reap_orphans(self) -> None:
        """Reap adopted child processes, and store the exit codes of ranks, because a dead launcher can't report them.

        The processes of a container never become children of the agent, and their pids are valid only in the container.
        """
        codes = reap_orphans(self.launcher.pid)
        if self.task.container is None:
            self.orphaned.update({rank: codes[pid] for rank, pid in self.started.pids.items() if pid in codes})

    @_HANDLERS.add
    async def _lost_launcher(self, report: messages.LauncherGone) -> None:
        """Report that the launcher ended by itself. Its ranks ended with it, so this is a failure of the node."""
        self.is_launcher_gone = True
        if self.launcher.is_dismissed and not self.running:
            self._renew_launcher()
            self._send_prepare()
            return
        code = report.code
        is_oom = code == -signal.SIGKILL and oom_kills() > self.oom_kills
        how = self.launcher.ended_for or _how_it_ended(code, is_oom=is_oom)
        self.events.write(events.LauncherGone(code, report.tail))
        if not self.running and self.begun == self.attempt:
            # All ranks of the launcher had ended, so it was no longer needed.
            await self._became_idle(messages.RanksIdle(self.attempt))
            return
        if not self.running:
            tail = list(report.tail)
            last = f"; its last words: {tail[-1]}" if tail else ""
            why = setup_failure(self.task.setup, tail) or refusal(self.task, code, tail) or f"the launcher {how}{last}"
            self.trouble(why, rules.NO_LAUNCHER if code > 0 else rules.LAUNCHER_LOST, tail)
            return
        self.reap_orphans()
        name, kills = name_of(-code) if code < 0 else "SIGKILL", oom_kills() - self.oom_kills if is_oom else 0
        error, sent = RankError(LOST_LAUNCHER, f"the launcher of this node {how}"), "SIGKILL" if self.is_overdue else ""
        ends: dict[str, Any] = {"signal": name, "error": error, "tail": report.tail, "sent": sent, "oom_kills": kills}
        lost = messages.RankEnded(self.attempt, 0, code if code > 0 else None, **ends)
        for rank in sorted(self.running):
            if self.orphaned.get(rank) == 0 and not self.told_to_stop:  # the launcher had no time to report it
                self._note_end(messages.RankEnded(self.attempt, rank, 0))
            else:
                self._note_end(replace(lost, rank=rank))
        self.started = replace(self.started, pids={})
        await self._became_idle(messages.RanksIdle(self.attempt))


def _how_it_ended(code: int, *, is_oom: bool) -> str:
    by_whom = ", from the kernel: its cgroup ran out of memory" if is_oom else ""
    return f"was killed by {name_of(-code)}{by_whom}" if code < 0 else f"ended with code {code}"


def resolve_launcher(task: NodeTask) -> str:
    """Return "fork" or "exec". If the job's `launcher` is auto, choose exec for a command and for Python on a GPU
    node.
    """
    if task.launcher != "auto":
        return task.launcher
    return "exec" if task.program.kind == "command" or gpus() else "fork"

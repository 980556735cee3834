"""The launcher, one process on each node, inside the runtime: holds the port of torch's store, forks the ranks, writes
their output to their logs, and reaps them. If the ranks are Python programs that run in the forks, the launcher imports
torch once for all of them. If each rank execs its own command, the launcher imports no torch.

The agent sends orders as JSON lines to stdin. The launcher sends reports to its original stdout. If stdin ends, the
agent has ended, so the launcher ends the ranks. The launcher starts no threads, and ends OpenBLAS's threads before a
fork, because forking is unsafe in a process with threads.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.node.launcher.flight_recorder import ANSWER_SECONDS, ask_for_dumps, read_groups, remove_pipes
from orchestrator.node.launcher.rank.argv import plan_ranks
from orchestrator.node.launcher.rank.exec_hook import files_of
from orchestrator.node.launcher.rank.exit_report import failure_report
from orchestrator.node.launcher.rank.forked import RankStart, become_rank, run_rank
from orchestrator.node.launcher.rank.log import RankLog
from orchestrator.node.launcher.stacks import PATIENCE_SECONDS, SETTLE_SECONDS, Asked, ask, describe, ranks_below
from orchestrator.node.launcher.warmup import is_there, torch_version, warm_up
from orchestrator.node.system.cgroup import oom_kills
from orchestrator.node.system.gpus.devices import devices_apart, gpus
from orchestrator.node.system.host import network_here
from orchestrator.node.system.private import hold_umask
from orchestrator.node.system.processes import ancestors, end_marked, state_of
from orchestrator.node.system.shortages import shortage
from orchestrator.node.system.signals import held_back, let_through, name_of
from orchestrator.node.system.sockets import listen, port_of, reserve
from orchestrator.outcome.ends import last_words
from orchestrator.protocol import messages
from orchestrator.protocol.checkpoints.checksum import installed
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.layout import archive_file, attempt_folder, node_folder
from orchestrator.protocol.masking import masker, secret_values
from orchestrator.protocol.places.devices import numbered
from orchestrator.protocol.schedulers import STOP_SIGNALS
from orchestrator.protocol.task import NodeTask
from orchestrator.protocol.typed import Handlers, converted, read

CHUNK = 1 << 16
LOOK_SECONDS = 0.1
F_SETPIPE_SZ = 1031
PIPE_BYTES = 1 << 20
_HANDLERS = Handlers(messages.Order)
_FAILED = {messages.Prepare: "the port for the ranks can't be had", messages.Go: "the ranks can't be started"}


@dataclass
class RankProcess:
    """A rank that has been started. `pipe` carries the rank's output until the pipe is closed."""

    start: RankStart
    pid: int
    log: RankLog
    pipe: int
    exit_status: int | None = None
    sent: int = 0  # the last signal that this launcher sent to the rank


@dataclass
class Launcher:
    """The state of the launcher: the channel to the agent, the store's socket, and the ranks."""

    task: NodeTask
    orders: int
    reports: int
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    listening: socket.socket | None = None
    reserved: socket.socket | None = None  # keeps the store's port, and does not listen
    store: Any = None
    ranks: dict[int, RankProcess] = field(default_factory=dict)
    kill_at: float | None = None
    stacks_at: float | None = None
    stacks_end: float = 0.0  # the time at which the launcher stops waiting for stacks
    asked: list[Asked] = field(default_factory=list)  # the ranks that got the signal to write their stacks
    recorders: list[int] = field(default_factory=list)  # the ranks whose flight recorder was requested to write a dump
    groups: dict[int, dict[str, Any]] = field(default_factory=dict)  # the process groups in the dumps that have arrived
    missing: str = ""  # a module that all ranks need and that this interpreter lacks
    oom_kills: int = field(default_factory=oom_kills)  # before this attempt
    attempt: int = 0
    folder: str = ""  # the attempt's folder
    members: range = range(0)  # the ranks of this node
    buffered: bytes = b""
    signals: tuple[int, int] = (-1, -1)

    def report(self, report: messages.Report) -> None:
        """Send a report to the agent. If the agent has ended, this raises nothing, because the launcher detects the
        agent's end by the end of its own stdin.
        """
        line = json.dumps(report.to_json()) + "\n"
        with contextlib.suppress(BrokenPipeError):
            _write_all(self.reports, line.encode())

    def serve(self) -> RankStart | None:
        """Carry out orders until stdin ends, and then return None. In a forked child, return the rank that the child
        must run.
        """
        self._listen_for_signals()
        self.selector.register(self.orders, selectors.EVENT_READ, "orders")
        imported = warm_up(self.task)
        if imported.get("opened_gpu") and self.task.launcher == "fork":
            self.task = replace(self.task, launcher="exec")  # a forked process can't use a CUDA context
        network = network_here() if self.task.container is not None else None
        self.missing = imported.get("missing", "")
        self.report(messages.Imported(self.attempt, network=network, **imported))
        while True:
            due = [moment for moment in (self.kill_at, self.stacks_at) if moment is not None]
            events = self.selector.select(max(0.0, min(due) - time.monotonic()) if due else None)
            for key, _ in events:
                if key.data == "orders":
                    start, open_still = self._read_orders()
                    if start is not None:
                        return start
                    if not open_still:
                        self._kill_ranks()
                        return None
                elif key.data == "signals":
                    os.read(self.signals[0], CHUNK)
                elif key.data == "store":
                    self._serve_store()
                else:
                    self._pump(key.data)
            self._reap()
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                self.kill_at = None
                self._kill_ranks()
            if self.stacks_at is not None and time.monotonic() >= self.stacks_at:
                self._report_stacks_when_there()

    def _listen_for_signals(self) -> None:
        self.signals = os.pipe()
        for end in self.signals:
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self.signals[1], warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler, the signal causes no wake-up
        for number in (*STOP_SIGNALS, signal.SIGHUP):
            # a scheduler signals every process, but the ranks are stopped only by the agent's order
            signal.signal(number, lambda *_: None)
        let_through()
        self.selector.register(self.signals[0], selectors.EVENT_READ, "signals")

    def _read_orders(self) -> tuple[RankStart | None, bool]:
        data = os.read(self.orders, CHUNK)
        if not data:
            return None, False
        *lines, self.buffered = (self.buffered + data).split(b"\n")
        for line in lines:
            try:
                order = messages.ORDERS.read(parse_json(line))
            except ValueError as error:
                self.report(messages.Trouble(f"an order of the agent is not understood: {error}"))
                continue
            start = None if order is None else self._obey(order)
            if start is not None:
                return start, True
        return None, True

    def _obey(self, order: messages.Order) -> RankStart | None:
        """Carry out an order. Errors of this machine (files, processes, disk space) are reported to the agent, not
        raised.
        """
        me, handler = os.getpid(), _HANDLERS.get(type(order))
        if handler is None:
            return None
        try:
            start: RankStart | None = handler(self, order)
        except (OSError, MemoryError) as error:
            if os.getpid() != me:
                raise  # this process is a forked rank by now, and its end is reported like every rank's
            lack = shortage(error)
            self._kill_ranks()
            words = "Cannot allocate memory" if isinstance(error, MemoryError) else error.strerror or error
            where = f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""
            more = f"; {lack}" if lack else ""
            self.report(messages.Trouble(f"{_FAILED.get(type(order), order.kind)}: {words}{where}{more}"))
            return None
        return start

    @_HANDLERS.add
    def _prepare(self, order: messages.Prepare) -> None:
        """On node 0, open a free port for the store, and keep it for the whole attempt. Report the port, which the
        other nodes need.
        """
        self.attempt = order.attempt
        self.store = None
        port = 0
        if self.task.node_rank == 0:
            self._stop_listening()
            if self.reserved is not None:
                self.reserved.close()
            self.reserved = reserve(order.store_addr)
            port = port_of([self.reserved])
            (self.listening,) = listen((order.store_addr,), (port,))
        self.report(messages.Ready(self.attempt, port, tuple(installed()), sys.executable, self.missing))

    @_HANDLERS.add
    def _find_module(self, order: messages.FindModule) -> None:
        """Report whether the ranks' interpreter on this node has a module that a rank on another node failed to
        import.
        """
        self.report(messages.ModuleSought(order.module, is_there(order.module)))

    @_HANDLERS.add
    def _go(self, order: messages.Go) -> RankStart | None:
        """Fork the ranks. They may connect to the store before it runs: their connections wait in the backlog of the
        listening socket until the store accepts them.
        """
        bound = order.binding
        self.folder = attempt_folder(node_folder(self.task.run_dir, self.task.node_rank), self.attempt)
        self.oom_kills = oom_kills()
        self.members = range(bound.rank_offset, bound.rank_offset + bound.nproc)
        os.makedirs(self.folder, exist_ok=True)
        with_torch = is_there("torch")
        serves_store = with_torch and bound.world_size > 1 and self.task.launcher not in ("torchrun", "accelerate")
        if not serves_store:
            self._stop_listening()  # rank 0, torchrun or accelerate will listen at the port
        starts = plan_ranks(
            self.task, bound, self.attempt, order.master_addr, order.master_port, serves_store=serves_store,
            resume_from=order.resume_from, checksum=order.checksum, visible=self._visible_gpus(),
            torch_version=torch_version() if with_torch and gpus() else "",
        )  # fmt: skip
        os.environ.update({key: value for key, value in order.network.items() if key not in os.environ})
        parent = os.getpid()
        for start in starts:
            child = self._fork(start, parent)
            if child is not None:
                return child
        if self.listening is not None:
            self.selector.register(self.listening, selectors.EVENT_READ, "store")
        pids = {rank: process.pid for rank, process in self.ranks.items()}
        self.report(messages.RanksStarted(self.attempt, pids, self.listening is not None))
        return None

    def _visible_gpus(self) -> dict[str, str]:
        """Return the variables that select the run's GPUs. They are determined here because the set-up lines have run,
        and because a container may have other GPUs than its node.
        """
        reserved = self.task.reserved
        return numbered(reserved, devices_apart(), os.environ) if reserved else {}

    def _stop_listening(self) -> None:
        if self.listening is not None:
            with contextlib.suppress(KeyError):  # the socket is registered only from `_go` until the first connection
                self.selector.unregister(self.listening)
            self.listening.close()
            self.listening = None

    def _fork(self, start: RankStart, parent: int) -> RankStart | None:
        log = RankLog(f"{self.folder}/rank_{start.rank}.log", self.task.log_limit)
        read_end, write_end = os.pipe()
        with contextlib.suppress(OSError):  # this exceeds this user's total limit for pipes; the usual 64 KiB suffice
            fcntl.fcntl(read_end, F_SETPIPE_SZ, PIPE_BYTES)
        with held_back():  # until the child has removed the launcher's handlers, which would ignore a TERM
            pid = os.fork()
            if pid == 0:
                become_rank(start, write_end, parent)
                log.close()
                self._close_inherited(read_end, write_end)
                return start
        os.close(write_end)
        os.set_blocking(read_end, False)
        process = RankProcess(start, pid, log, read_end)
        self.ranks[start.rank] = process
        self.selector.register(read_end, selectors.EVENT_READ, process)
        return None

    def _close_inherited(self, *also: int) -> None:
        """Close the launcher's descriptors in a forked child.

        If the child kept the store's socket open, other ranks would hang after the store's end. Descriptors that an
        import has opened are not closed here. An object may own such a descriptor and close its number later, when the
        number belongs to another file.
        """
        self.selector.close()
        for sock in (self.listening, self.reserved):
            if sock is not None:
                sock.close()
        for process in self.ranks.values():
            process.log.close()
        siblings = [process.pipe for process in self.ranks.values() if process.pipe >= 0]
        for descriptor in (self.reports, *self.signals, *siblings, *also):
            os.close(descriptor)

    def _serve_store(self) -> None:
        """When the first rank connects, start torch's store on the socket that has held the port until now."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        assert self.listening is not None
        self.selector.unregister(self.listening)
        addr, port, *_ = self.listening.getsockname()
        host = "localhost" if addr in ("::", "0.0.0.0") else addr  # noqa: S104 (compared with, not bound)
        descriptor = self.listening.detach()
        self.store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)
        self.listening = None
        self.report(messages.Dialed(self.attempt))

    @_HANDLERS.add
    def _stop(self, order: messages.Stop) -> None:
        """Send TERM to the ranks now, and KILL after `grace` seconds.

        For a Python rank, only the rank's main process gets TERM. If the workers of its data loader got TERM too, their
        death would end the rank before it has saved a checkpoint. For a `command:`, the whole process group gets TERM,
        because shells don't forward signals.
        """
        for process in self._alive():
            if has_ended(process.pid):
                continue  # the rank has ended by itself, and will be reaped in a moment
            send = _signal_group if process.start.kind == "command" else os.kill
            send(process.pid, signal.SIGTERM)
            process.sent = signal.SIGTERM
        self.kill_at = time.monotonic() + order.grace if self.ranks else None

    @_HANDLERS.add
    def _answer(self, order: messages.Ping) -> None:
        """Answer a ping, by which the agent checks whether this process responds."""
        self.report(messages.Pong(self.attempt))

    @_HANDLERS.add
    def _ask_for_stacks(self, order: messages.ReportStacks) -> None:
        """Request stacks from every rank. They are reported when they have arrived."""
        standing = self._standing().items()
        asked = [ask(pid, files_of(self.folder, rank)["stack_file"]) for rank, pid in standing]
        self.asked = [each for each in asked if each is not None]
        self.recorders, self.groups = ask_for_dumps(self.folder, self.members), {}
        now = time.monotonic()
        self.stacks_at = now + (ANSWER_SECONDS if self.recorders else SETTLE_SECONDS)
        self.stacks_end = now + PATIENCE_SECONDS

    def _report_stacks_when_there(self) -> None:
        """Report the stacks if every rank that can answer has done so, or if the time for answers has passed.
        Otherwise, check again later.
        """
        standing = self._standing()
        able = {rank: pid for rank, pid in standing.items() if state_of(pid) in ("R", "S")}
        self.asked = [each for each in self.asked if not each.answer()]
        late = {each.pid for each in self.asked} & set(able.values())
        for rank in self.recorders:
            if rank not in self.groups and (groups := read_groups(self.folder, rank)) is not None:
                self.groups[rank] = groups
        lacks_dump = any(rank in able and rank not in self.groups for rank in self.recorders)
        if (late or lacks_dump) and time.monotonic() < self.stacks_end:
            self.stacks_at = time.monotonic() + LOOK_SECONDS
            return
        self.stacks_at = None
        ranks = {rank: {**self._described(rank, pid), "late": pid in late} for rank, pid in standing.items()}
        dumps = {rank: self.groups.get(rank, {}) for rank in self.recorders}
        self.report(read(messages.StacksFound, {"ranks": ranks, "recorders": dumps}))

    def _described(self, rank: int, pid: int) -> dict[str, Any]:
        """Return a rank's state and the line of the program at which it is. If this fails, return a description without
        the line, because an error must not end the ranks.
        """
        try:
            return describe(pid, files_of(self.folder, rank)["stack_file"])
        except Exception:  # noqa: BLE001 (the rank's process may have written any text)
            return {"state": state_of(pid), "in_collective": None, "where": None, "frames": []}

    def _standing(self) -> dict[int, int]:
        """Return the process of each running rank, including the ranks that torchrun or accelerate has started."""
        found = {}
        for process in self._alive():
            found.update((process.start.members and ranks_below(process.pid)) or {process.start.rank: process.pid})
        return found

    def _alive(self) -> list[RankProcess]:
        return [process for process in self.ranks.values() if process.exit_status is None]

    def _kill_ranks(self) -> None:
        for process in self._alive():
            _signal_group(process.pid, signal.SIGKILL)
            process.sent = signal.SIGKILL

    def _pump(self, process: RankProcess) -> bool:
        """Copy one chunk from the rank's pipe to its log. Return False if the pipe has no data."""
        try:
            data = os.read(process.pipe, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._close_pipe(process)
            return False
        is_first = process.log.lost == 0
        error = process.log.write(data)
        if error is not None and is_first:
            self.report(messages.LogFailed(self.attempt, process.start.rank, process.log.path, error.strerror))
        return True

    def _close_pipe(self, process: RankProcess) -> None:
        self.selector.unregister(process.pipe)
        os.close(process.pipe)
        process.pipe = -1

    def _reap(self) -> None:
        """Report every rank that has ended, once its process group has ended and its last output is in the log."""
        for process in self._alive():
            if not has_ended(process.pid):
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # the zombie still reserves the group's number
            _, process.exit_status = os.waitpid(process.pid, 0)
            while process.pipe >= 0 and self._pump(process):
                pass
            if process.pipe >= 0:  # a process in another session still has the other end open
                self._close_pipe(process)
            process.log.close()
            self._report_exit(process)
        if self.ranks and not self._alive():
            self.ranks.clear()
            remove_pipes(self.folder, self.members)
            self.kill_at = None
            self.report(self._terminate_leftovers())

    def _terminate_leftovers(self) -> messages.RanksIdle:
        """In a container, kill the processes that the ranks have left running, and report how many were killed. Outside
        of containers, the agent kills these processes.

        The agent can't do this in a container, because it would also kill the launcher.
        """
        if self.task.container is None:
            return messages.RanksIdle(self.attempt)
        keep = (os.getpid(), *ancestors(os.getpid()))
        killed, survivors = end_marked(self.task.run_id, self.task.node_rank, keep)
        return messages.RanksIdle(self.attempt, killed, tuple(process.pid for process in survivors))

    def _report_exit(self, process: RankProcess) -> None:
        start, status = process.start, process.exit_status
        assert status is not None
        code = os.waitstatus_to_exitcode(status)
        end = failure_report(start, code, masker(secret_values(self.task.secrets, self.task.env)))
        missing = None
        if code > 0 and "No module named" in (words := last_words(end, 3)):
            from orchestrator.node.launcher.rank.missing_module import missing_module

            missing = missing_module(words)
        sent, kills = name_of(process.sent) if process.sent else "", oom_kills() - self.oom_kills
        end = replace(end, sent=sent, oom_kills=max(0, kills), missing=missing, log_bytes_lost=process.log.lost)
        self.report(converted(end, messages.RankEnded, attempt=self.attempt))


def has_ended(pid: int) -> bool:
    """Return whether a child has ended. The child stays a zombie, so its pid is not reused."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal_group(pid: int, number: int) -> None:
    """Signal a rank's process group. If the rank has not created its group yet, signal only the rank."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        os.kill(pid, number)  # the rank is not reaped yet, so no other process can have its pid


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def run_launcher() -> int:
    """Run the launcher, and return its exit code. In a forked child, run the rank, and return the rank's exit code."""
    reports = os.dup(1)
    os.set_inheritable(reports, False)
    os.dup2(2, 1)  # text that an import prints must not be read as a report
    first = b""
    while not first.endswith(b"\n"):
        data = os.read(0, 1)
        if not data:
            return 0
        first += data
    task = NodeTask.from_json(parse_json(first))
    # If the container has another user, the agent must be able to read the files.
    if os.stat(archive_file(task.run_dir)).st_uid == os.geteuid():
        hold_umask()
    if task.container is not None:  # other users can see a command, so the variables come with the task
        os.environ.update(task.env)
    os.environ.update(task.secrets)
    start = Launcher(task, orders=0, reports=reports).serve()
    return 0 if start is None else run_rank(start)

"""What an agent finds on a simulated machine: a record, a launcher and ranks that are neither files nor processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

from orchestrator.node.agent import agent, joining, launcher_process, leader_service, neighbour, ranks
from orchestrator.node.agent.channel import Channel
from orchestrator.protocol.events import Event
from orchestrator.protocol.messages import Go, LauncherGone, Order, Prepare, Report, Stop, read_report
from orchestrator.protocol.task import NodeTask
from orchestrator.protocol.typed import to_json
from tests.simulator.network import Machine, Network, VirtualTls, connected, here

Message = dict[str, Any]
VICTIM = {
    "code": 1, "signal": None, "tail": [],
    "error": {"type": "RuntimeError", "message": "Connection closed by peer"},
}  # fmt: skip
BROKEN = [
    {"code": 1, "signal": None, "tail": [], "error": {"type": kind, "message": message}}
    for kind, message in (
        ("ConnectionResetError", "[Errno 104] Connection reset by peer"), ("EOFError", ""),
        ("struct.error", "unpack requires a buffer of 4 bytes"),  # what a program makes of a broken connection
    )
] + [VICTIM]  # fmt: skip
STOPPED = {"code": None, "signal": "SIGTERM", "sent": "SIGTERM", "error": None, "tail": []}
DONE = {"code": 0, "signal": None, "error": None, "tail": []}


class MemoryLog:
    """An EventLog whose lines are kept as values, with how many bytes the file would have."""

    on_event: Callable[[int, Message], None] = staticmethod(lambda node, event: None)

    def __init__(self, path: str, node_rank: int) -> None:
        self.node_rank = node_rank
        self.events: list[Message] = []
        self.bytes = 0

    def write(self, written: Event) -> None:
        """Append one event."""
        mono = round(asyncio.get_running_loop().time(), 3)
        event = {"kind": written.kind, "mono": mono, **to_json(written, stamps=False)}
        self.events.append(event)
        self.bytes += len(json.dumps(event)) + 1
        self.on_event(self.node_rank, event)

    def close(self) -> None:
        """Do nothing."""


class SimulatedLauncher:
    """A launcher and its ranks, which do what the simulation has them do; the interface of a LauncherProcess."""

    of: dict[Machine, SimulatedLauncher]

    def __init__(self, task: NodeTask, on_report: Callable[[Report], None]) -> None:
        self.masked: Callable[[str], str] = str  # these ranks have no secrets
        self.task, self.on_report = task, on_report
        self.machine = here.get()
        self.container: Message = {}
        self.left: list[str] = []
        self.asked: float | None = None
        self.pid: int | None = None
        self.ended_for = ""
        self.is_dismissed = self.is_up = False
        self.early: list[Order] = []
        self.running: set[int] = set()
        self.attempt = -1
        self.ends_well_in: float | None = None
        self.of[self.machine] = self

    async def start(self, nproc: int, attempt: int) -> None:
        """Import what ranks need; a straggler takes its time."""
        await asyncio.sleep(self.machine.import_seconds)
        self.is_up = True
        for order in self.early:
            self.send(order)

    def _seconds(self, least: float, most: float) -> float:
        return self.machine.chance.uniform(least, most) * (3.0 if self.machine.factor > 1.0 else 1.0)

    def serves(self, attempt: int) -> bool:
        """Serve any attempt."""
        return True

    def silence(self, now: float) -> float:
        """Be never silent."""
        return 0.0

    def send(self, order: Order) -> None:
        """Take an order."""
        if not self.is_up:
            self.early.append(order)
        elif isinstance(order, Prepare):
            self.attempt = order.attempt
            ready = {"port": 29400 + self.attempt, "checksums": ["sha256"]}
            self._later(self._seconds(0.01, 0.2), self._report, "ready", ready)
        elif isinstance(order, Go):
            first = order.binding.rank_offset
            self.running = set(range(first, first + order.binding.nproc))
            self._report("started", {"pids": dict.fromkeys(self.running, 1)})
            if self.ends_well_in is not None:
                self.end_well(self.ends_well_in)
        elif isinstance(order, Stop):
            self._later(self._seconds(0.02, min(0.5, order.grace)), self.end_ranks, self.attempt, STOPPED)

    def _later(self, seconds: float, act: Callable[..., object], *args: object) -> None:
        asyncio.get_running_loop().call_later(seconds, act, *args)

    def _report(self, kind: str, values: Message) -> None:
        if self.is_up:
            report = read_report({"kind": kind, "attempt": self.attempt, **values})
            assert report is not None
            self.on_report(report)

    def end_ranks(self, attempt: int, how: Mapping[str, Any], ranks: tuple[int, ...] | None = None) -> None:
        """Have ranks of this node end, all of them if none are named."""
        ending = sorted(self.running if ranks is None else self.running & set(ranks))
        if attempt != self.attempt or not ending:
            return
        for rank in ending:
            self.running.discard(rank)
            self._report("exit", {"rank": rank, **how})
        if not self.running:
            self._report("idle", {"killed": 0, "survivors": []})

    def end_well(self, seconds: float) -> None:
        """Have all ranks end with 0 after so many seconds of this attempt, which may not have come here yet."""
        self.ends_well_in = seconds
        if self.running:
            self._later(seconds, self.end_ranks, self.attempt, DONE)

    async def end(self) -> None:
        """End at once."""
        self.kill()

    def be_killed(self, seconds: float) -> None:
        """Be killed by somebody with all ranks, as if its container were removed. Its agent hears of this later."""
        self.kill()
        self._later(seconds, self.on_report, LauncherGone(-9))

    def kill(self) -> None:
        """Be gone."""
        self.is_up, self.running = False, set()


class NoMetrics:
    """No files of the program's are read for metrics."""

    def __init__(self, *_: object) -> None: ...

    async def run(self) -> None: ...

    async def end(self) -> None: ...

    def note(self, started: object) -> None: ...


class NoSampling:
    """A node that is not sampled."""

    def __init__(self, *_: object) -> None:
        pass

    def end(self) -> None:
        """Know of no energy."""


async def _here_and_now(work: Callable[..., Any], *args: Any) -> Any:
    return work(*args)


@contextlib.contextmanager
def simulated(network: Network, on_event: Callable[[int, Message], None]) -> Iterator[None]:
    """Put agents of this process on simulated machines, each on the one that `here` says."""
    clock = SimpleNamespace(
        monotonic=lambda: asyncio.get_running_loop().time(), time=lambda: asyncio.get_running_loop().time()
    )

    async def pair() -> tuple[Channel, Channel]:
        one, other = connected(network, here.get(), here.get())
        return one.channel, other.channel

    new: list[tuple[Any, Mapping[str, Any]]] = [
        (agent, {
            "time": clock, "in_thread": _here_and_now, "EventLog": MemoryLog, "Sampling": NoSampling,
            "WrittenMetrics": NoMetrics,
            "Tls": SimpleNamespace(of=lambda _: VirtualTls(network, here.get())), "adopt_orphans": lambda: None,
            "socket": SimpleNamespace(gethostname=lambda: here.get().name), "network_environment": lambda *_: {},
            "end_marked": lambda *_: (0, []), "end_descendants": lambda _: 0, "remove_compiled": lambda _: None,
        }),
        (joining, {"time": clock}),
        (ranks, {
            "time": clock, "in_thread": _here_and_now, "reap_orphans": lambda _: {}, "end_marked": lambda *_: (0, []),
        }),
        (launcher_process, {"LauncherProcess": SimulatedLauncher}),
        (neighbour, {"listen": network.listen}),
        (leader_service, {
            "time": clock, "in_thread": _here_and_now, "listen": network.listen, "pair": pair,
            "listening_addresses": lambda addrs, _: addrs, "allow_connections": lambda *_: None,
        }),
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        for module, values in new:
            for name, value in values.items():
                stack.enter_context(mock.patch.object(module, name, value))
        stack.enter_context(mock.patch.object(SimulatedLauncher, "of", {}, create=True))
        stack.enter_context(mock.patch.object(MemoryLog, "on_event", staticmethod(on_event)))
        yield

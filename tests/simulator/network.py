"""Machines in racks and the network between them: latency, jitter, lost packets, racks that are cut off or lose power.

TCP as its users see it: bytes arrive in order and late, or not at all; a lost packet is sent again after a time that
doubles. Of a TLS handshake there are the round trips, and the processor time of the side that is dialled.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from orchestrator.node.agent.channel import MAX_LINE, Channel
from orchestrator.node.agent.tls import ANSWER_SECONDS, CONNECT_SECONDS, PROOF_SECONDS
from tests.simulator.clock import VirtualLoop

HANDSHAKE_SECONDS = 0.003  # of the dialled side's processor
RETRANSMIT_SECONDS = 0.2  # the system's first; each further one takes twice as long
NEVER = float("inf")

here: contextvars.ContextVar[Machine] = contextvars.ContextVar("here")


@dataclass(frozen=True)
class Weather:
    """How the network is."""

    latency: float = 0.0002  # within a rack; between racks twice that
    jitter: float = 0.0003  # the mean of an exponential
    loss: float = 0.001  # of a packet
    stragglers: float = 0.02  # share of the machines that are slow
    slowness: float = 30.0  # by which factor their latency is


@dataclass(eq=False)
class Machine:
    """One machine: where it stands, and what it has sent and heard."""

    number: int
    rack: int
    addr: str
    chance: random.Random
    factor: float = 1.0  # of its latency
    cut_until: float = 0.0  # until when nothing gets to it or away from it
    busy_until: float = 0.0  # with handshakes
    sent: Counter[str] = field(default_factory=Counter)  # messages by kind
    sent_bytes: int = 0
    heard: Counter[str] = field(default_factory=Counter)
    heard_bytes: int = 0
    ends: set[End] = field(default_factory=set)  # of its open connections
    most_ends: int = 0
    last_port: int = 40000
    dials: int = 0  # to other machines
    start_after: float = 0.0  # seconds from the beginning to the start of its agent
    import_seconds: float = 0.0  # of its launcher

    @property
    def name(self) -> str:
        """Return what it calls itself."""
        return f"n{self.number + 1}"

    def lose_power(self) -> None:
        """Be silent from now on, without a word to anybody."""
        self.cut_until = NEVER


class Network:
    """All machines, and what listens on them."""

    def __init__(self, count: int, seed: str, weather: Weather, per_rack: int = 32) -> None:
        chance = random.Random(f"{seed} network")
        self.weather = weather
        self.machines = [
            Machine(
                number, number // per_rack, f"10.{number // 62500}.{number // 250 % 250}.{number % 250 + 1}",
                random.Random(f"{seed} machine {number}"),
                weather.slowness if number and chance.random() < weather.stragglers else 1.0,
            )
            for number in range(count)
        ]  # fmt: skip
        self.by_addr = {machine.addr: machine for machine in self.machines}
        self.listening: dict[tuple[str, int], VirtualSocket] = {}

    def rack(self, number: int) -> list[Machine]:
        """Return the machines of one rack."""
        return [machine for machine in self.machines if machine.rack == number]

    def delay(self, source: Machine, to: Machine) -> float:
        """Return how long a packet is on its way, with those that are lost before it gets through."""
        weather, chance = self.weather, source.chance
        seconds = weather.latency * (1 if source.rack == to.rack else 2) * max(source.factor, to.factor)
        seconds += chance.expovariate(1 / weather.jitter) if weather.jitter else 0.0
        again = RETRANSMIT_SECONDS
        while chance.random() < weather.loss:
            seconds, again = seconds + again, 2 * again
        return seconds

    def listen(self, addrs: tuple[str, ...], ports: tuple[int, ...]) -> list[VirtualSocket]:
        """Stand in for node.system.sockets.listen."""
        machine = self.by_addr[addrs[0]]
        for port in ports:
            machine.last_port += not port
            number = port or machine.last_port
            if (addrs[0], number) not in self.listening:
                return [VirtualSocket(self, machine, addr, number) for addr in addrs]
        raise OSError("all ports are taken")


class VirtualSocket:
    """A listening socket."""

    def __init__(self, network: Network, machine: Machine, addr: str, port: int) -> None:
        self.network, self.machine, self.addr, self.port = network, machine, addr, port
        self.pending: deque[tuple[End, str]] = deque()
        self.on_dial: Callable[[], Any] | None = None
        network.listening[addr, port] = self

    def setblocking(self, _: bool) -> None:
        """Do nothing: it never blocks."""

    def fileno(self) -> int:
        """Return -1 once it is closed."""
        return 0 if self.network.listening.get((self.addr, self.port)) is self else -1

    def getsockname(self) -> tuple[str, int]:
        """Return where it listens."""
        return self.addr, self.port

    def accept(self) -> tuple[End, tuple[str, int]]:
        """Return who has dialled."""
        if not self.pending:
            raise BlockingIOError
        end, addr = self.pending.popleft()
        return end, (addr, 0)

    def dialled(self, end: End, addr: str) -> None:
        """Queue one that dials."""
        self.pending.append((end, addr))
        if self.on_dial is not None:
            asyncio.get_running_loop().call_soon(self.on_dial)

    def close(self) -> None:
        """Listen no more."""
        self.network.listening.pop((self.addr, self.port), None)
        while self.pending:
            self.pending.popleft()[0].close()


class SimulatedLoop(VirtualLoop):
    """A virtual loop that knows simulated sockets."""

    def add_reader(self, sock: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        """Call back whenever somebody dials the socket."""
        if not isinstance(sock, VirtualSocket):
            super().add_reader(sock, callback, *args)
            return
        context = contextvars.copy_context()
        sock.on_dial = lambda: context.copy().run(callback, *args) if sock.on_dial is not None else None
        for _ in sock.pending:
            self.call_soon(sock.on_dial)

    def remove_reader(self, sock: Any) -> Any:
        """Call back no more."""
        if not isinstance(sock, VirtualSocket):
            return super().remove_reader(sock)
        sock.on_dial = None
        return True


class End:
    """One end of a connection; what a Channel and a Listener need of a StreamWriter and of a socket."""

    def __init__(self, network: Network, machine: Machine, peer_machine: Machine) -> None:
        self.network, self.machine, self.peer_machine = network, machine, peer_machine
        self.reader = asyncio.StreamReader(limit=MAX_LINE)
        self.peer: End = self
        self.shaken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()  # by the handshake
        self.is_closed = False
        self.under_way: deque[tuple[Callable[[bytes], None], bytes]] = deque()
        self.last = 0.0  # when what was sent last arrives
        machine.ends.add(self)
        machine.most_ends = max(machine.most_ends, len(machine.ends))

    @property
    def transport(self) -> End:
        """Return what can be aborted."""
        return self

    def setblocking(self, _: bool) -> None:
        """Do nothing: it never blocks."""

    def get_extra_info(self, name: str) -> tuple[str, int]:
        """Return the address of this end or of the other."""
        return (self.machine if name == "sockname" else self.peer_machine).addr, 0

    def write(self, data: bytes) -> None:
        """Send."""
        self.machine.sent[kind_of(data)] += 1
        self.machine.sent_bytes += len(data)
        self._send(self.peer._arrives, data)

    def _send(self, arrive: Callable[[bytes], None], data: bytes = b"") -> None:
        """Have something arrive at the other machine, after all that was sent before; never where it is cut off."""
        self.under_way.append((arrive, data))
        self._schedule()

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        began = max(loop.time(), self.machine.cut_until, self.peer_machine.cut_until)
        if began < NEVER:
            self.last = max(self.last, began + self.network.delay(self.machine, self.peer_machine))
            loop.call_at(self.last, self._deliver)

    def _deliver(self) -> None:
        if max(self.machine.cut_until, self.peer_machine.cut_until) > asyncio.get_running_loop().time():
            self._schedule()  # it is sent again, and its place in the order stays
        else:
            arrive, data = self.under_way.popleft()
            arrive(data)

    def _arrives(self, data: bytes) -> None:
        if not self.reader.at_eof() and not self.is_closed:
            self.machine.heard[kind_of(data)] += 1
            self.machine.heard_bytes += len(data)
            self.reader.feed_data(data)

    def _ends(self, _: bytes) -> None:
        self.reader.feed_eof()
        if not self.shaken.done():
            self.shaken.set_result(False)

    def is_closing(self) -> bool:
        """Is it closed on this side?"""
        return self.is_closed

    def close(self) -> None:
        """Close this side; the other hears of it after all that was sent."""
        if not self.is_closed:
            self.is_closed = True
            self.machine.ends.discard(self)
            self._send(self.peer._ends)
            self._ends(b"")

    abort = close

    async def wait_closed(self) -> None:
        """Return at once."""

    def greet(self) -> None:
        """Tell the other side that the handshake is done."""
        self._send(self.peer._greeted)

    def _greeted(self, _: bytes) -> None:
        if not self.shaken.done():
            self.shaken.set_result(True)

    @property
    def channel(self) -> Channel:
        """Return the channel of this end."""
        writer: Any = self
        return Channel(self.reader, writer)


def kind_of(line: bytes) -> str:
    """Return the kind of a message, without parsing it."""
    return line[10 : line.index(b'"', 10)].decode() if line.startswith(b'{"kind": "') else "other"


def connected(network: Network, one: Machine, other: Machine) -> tuple[End, End]:
    """Return the two ends of a new connection."""
    ends = End(network, one, other), End(network, other, one)
    ends[0].peer, ends[1].peer = ends[1], ends[0]
    return ends


class VirtualTls:
    """The credentials of one machine: it dials and is dialled as by node.agent.tls.Tls, with the same patience."""

    def __init__(self, network: Network, machine: Machine) -> None:
        self.network, self.machine = network, machine

    async def accept(self, end: End) -> Channel:
        """Prove each to the other: that takes this machine's processor a moment, after the others before."""
        now = asyncio.get_running_loop().time()
        self.machine.busy_until = max(now, self.machine.busy_until) + HANDSHAKE_SECONDS
        try:
            await asyncio.wait_for(asyncio.sleep(self.machine.busy_until - now), PROOF_SECONDS)
        except BaseException as error:
            end.close()
            if isinstance(error, asyncio.TimeoutError):
                raise ConnectionAbortedError from error
            raise
        end.greet()
        return end.channel

    async def connect(self, addr: str, port: int) -> Channel:
        """Dial, and prove each to the other."""
        mine = await asyncio.wait_for(self._dialled(addr, port), CONNECT_SECONDS)
        try:
            if not await asyncio.wait_for(mine.shaken, ANSWER_SECONDS):
                raise ConnectionResetError
        except BaseException as error:
            mine.close()
            if isinstance(error, asyncio.TimeoutError):
                raise ConnectionAbortedError from error
            raise
        return mine.channel

    async def _dialled(self, addr: str, port: int) -> End:
        source, to = self.machine, self.network.by_addr[addr]
        source.dials += 1
        loop = asyncio.get_running_loop()
        began = max(loop.time(), source.cut_until, to.cut_until)
        if began == NEVER:
            await loop.create_future()
        await asyncio.sleep(began - loop.time() + self.network.delay(source, to) + self.network.delay(to, source))
        listening = self.network.listening.get((addr, port))
        if listening is None:
            raise ConnectionRefusedError
        mine, theirs = connected(self.network, source, to)
        listening.dialled(theirs, source.addr)
        return mine

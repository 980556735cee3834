"""The gang's TCP channel: JSON lines between node 0's leader and every agent, after both proved the run's token.

The listener speaks first. Nothing that a stranger sends is parsed beyond one short line, and nothing is unpickled.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import time
from typing import Any, Callable

from orchestrator.protocol.gang import Hello
from orchestrator.protocol.task import NodeTask

MAX_LINE = 1 << 18
MAX_STRANGERS = 64
HANDSHAKE_SECONDS = 10.0
CONNECT_SECONDS = 3.0
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # between two rounds of dialling
CLOSE_SECONDS = 1.0  # a peer that reads nothing must not hold up the end

Message = dict[str, Any]


class ChannelError(Exception):
    """The peer is not of this gang, or broke the protocol."""


def prove(token: str, *parts: str) -> str:
    """The HMAC by which one who knows the token answers a challenge."""
    return hmac.new(token.encode(), "\0".join(parts).encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def is_proof(answer: Any, expected: str) -> bool:
    """Is it the expected one? In constant time; as bytes, because a stranger may send anything."""
    return hmac.compare_digest(str(answer).encode("utf-8", "replace"), expected.encode())


class Channel:
    """One connection that carries JSON lines both ways."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        with contextlib.suppress(OSError):
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def peer_addr(self) -> str:
        """The address by which this side reached the other."""
        addr = str(self.writer.get_extra_info("peername")[0])
        return addr[7:] if addr.startswith("::ffff:") else addr

    def send(self, message: Message) -> None:
        """Queue a message; a connection that is gone shows when it is read."""
        if not self.writer.is_closing():
            self.writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self) -> Message | None:
        """The next message; None when the peer has closed; ChannelError when it sent something else."""
        try:
            line = await self.reader.readline()
        except OSError:  # also "no route to host", which is no ConnectionError
            return None
        except ValueError as error:
            raise ChannelError(f"a line of more than {MAX_LINE} bytes") from error
        if not line.endswith(b"\n"):
            return None
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ChannelError("a line that is not JSON") from error
        if not isinstance(message, dict):
            raise ChannelError("a line that is not a JSON object")
        return message

    async def close(self) -> None:
        """Flush and close."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


def _hello_text(hello: Message) -> str:
    return json.dumps(hello, sort_keys=True)


async def welcome(channel: Channel, token: str, admit: Callable[[Hello], bool]) -> Hello:
    """The leader's half of the handshake: challenge the stranger, check its proof, give ours to one that we admit.

    One that is not admitted never sees our proof. So an agent that dials two addresses of the same leader at once
    can't take the connection that the leader has dropped for the one that it has kept.
    """
    challenge = secrets.token_hex(16)
    channel.send({"orch": "gang", "challenge": challenge})
    answer = await channel.receive()
    if answer is None:
        raise ChannelError("closed before it proved anything")
    hello, nonce = answer.get("hello"), str(answer.get("challenge"))
    if not isinstance(hello, dict):
        raise ChannelError("no hello")
    expected = prove(token, "member", challenge, nonce, _hello_text(hello))
    if not is_proof(answer.get("proof"), expected):
        raise ChannelError("a wrong token")
    member = Hello(**{**hello, "addrs": tuple(hello.get("addrs", ()))})
    if not admit(member):
        raise ChannelError("a second agent of a node that is here already")
    channel.send({"proof": prove(token, "leader", nonce, challenge)})
    return member


async def _introduce(channel: Channel, token: str, hello: Hello) -> None:
    greeting = await channel.receive()
    if greeting is None or greeting.get("orch") != "gang":
        raise ChannelError("something else listens there")
    nonce, challenge, data = secrets.token_hex(16), str(greeting.get("challenge")), dict(hello.__dict__)
    proof = prove(token, "member", challenge, nonce, _hello_text(json.loads(json.dumps(data))))
    channel.send({"hello": data, "challenge": nonce, "proof": proof})
    answer = await channel.receive()
    if answer is None:
        raise ChannelError("another gang's leader listens there, or this node has joined already")
    if not is_proof(answer.get("proof"), prove(token, "leader", nonce, challenge)):
        raise ChannelError("another gang's leader listens there")


class LeaderServer:
    """The leader's ear: accepts connections, lets only members in, hands their messages on."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.members: dict[int, Channel] = {}
        self.strangers = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.talking: set[asyncio.Task[None]] = set()  # those of members

    async def open(
        self,
        sock: socket.socket,
        on_join: Callable[[Hello], None],
        on_message: Callable[[int, Message], None],
        on_left: Callable[[int, str], None],
    ) -> None:
        """Serve on a listening socket until close(), and call back for what the members do."""
        self.on_join, self.on_message, self.on_left = on_join, on_message, on_left
        self.server = await asyncio.start_server(self._accept, sock=sock, limit=MAX_LINE)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        channel = Channel(reader, writer)
        try:
            if self.strangers < MAX_STRANGERS:
                await self._serve(channel, task)
        except asyncio.CancelledError:
            pass  # by close(); a cancelled task would end in a traceback of asyncio's own
        finally:
            self.tasks.discard(task)
            self.talking.discard(task)
            await channel.close()

    async def _serve(self, channel: Channel, task: asyncio.Task[None]) -> None:

        def admit(hello: Hello) -> bool:
            # A second agent for a node that is here already must not displace the first.
            return self.members.setdefault(hello.node_rank, channel) is channel

        self.strangers += 1
        try:
            hello = await asyncio.wait_for(welcome(channel, self.token, admit), HANDSHAKE_SECONDS)
        except (ChannelError, asyncio.TimeoutError, TypeError):
            return  # a stranger: a port scanner, or another run's agent trying its ports
        finally:
            self.strangers -= 1
        self.talking.add(task)
        node, reason = hello.node_rank, "its agent closed the connection"
        self.on_join(hello)
        try:
            while (message := await channel.receive()) is not None:
                self.on_message(node, message)
        except ChannelError as error:
            reason = f"it sent {error}"
        self.on_left(node, reason)

    def send(self, node: int, message: Message) -> None:
        """Send to one member; one that has not joined or has left misses it."""
        if node in self.members:
            self.members[node].send(message)

    async def close(self, patience: float) -> None:
        """Stop listening, and let the members close first for up to `patience` seconds; no stranger is waited for."""
        self.server.close()
        if self.talking:
            await asyncio.wait(self.talking, timeout=patience)
        left = list(self.tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=CLOSE_SECONDS)


async def dial(addrs: tuple[str, ...], ports: tuple[int, ...], token: str, hello: Hello) -> Channel:
    """The channel to the leader: every address and port is tried at once, the first that proves itself is taken.

    Raises ChannelError with what went wrong, by address, when none does.
    """
    tries = {asyncio.create_task(_try(addr, port, token, hello)): (addr, port) for addr in addrs for port in ports}
    problems: dict[str, list[str]] = {}
    pending: set[asyncio.Task[Channel]] = set(tries)
    found: Channel | None = None
    while pending and found is None:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            error = task.exception()
            if error is None and found is None:
                found = task.result()
            elif error is None:
                await task.result().close()
            elif not isinstance(error, (OSError, ChannelError, asyncio.TimeoutError)):
                raise error
            else:
                addr, port = tries[task]
                problems.setdefault(f"{addr}: {in_words(error)}", []).append(str(port))
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    if found is not None:
        return found
    raise ChannelError("; ".join(f"{what} (ports {', '.join(ports_)})" for what, ports_ in problems.items()))


def in_words(error: BaseException) -> str:
    """Why a connection could not be made."""
    if isinstance(error, asyncio.TimeoutError):
        return "timed out"
    return "refused" if isinstance(error, ConnectionRefusedError) else str(error)


async def connect(addr: str, port: int) -> Channel:
    """A connection to whoever listens there; OSError or TimeoutError where nobody does."""
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(addr, port, limit=MAX_LINE), CONNECT_SECONDS)
    except UnicodeError as error:
        raise OSError(f"not a host name: {addr!r}") from error
    return Channel(reader, writer)


async def _try(addr: str, port: int, token: str, hello: Hello) -> Channel:
    channel = await connect(addr, port)
    try:
        await asyncio.wait_for(_introduce(channel, token, hello), HANDSHAKE_SECONDS)
    except BaseException:
        channel.writer.close()
        raise
    return channel


async def join(task: NodeTask, hello: Hello) -> Channel:
    """The channel to the leader; ChannelError says what is in the way, by address, when the time-out ends.

    It dials again after a pause because there is nothing to wait on but a port on another machine.
    """
    addrs = ("127.0.0.1",) if task.node_rank == 0 else task.leader_addrs
    end, pause = time.monotonic() + task.join_timeout, FIRST_PAUSE
    while True:
        try:
            return await dial(addrs, task.ports, task.token, hello)
        except ChannelError as error:
            if time.monotonic() + pause >= end:
                where = f"node {task.node_rank} ({hello.host}) can't reach node 0 ({task.hosts[0]})"
                raise ChannelError(f"{where}: {error}") from error
        await asyncio.sleep(pause)
        pause = min(LONGEST_PAUSE, pause * 1.5)

"""The gang's channel over real loopback sockets: who is let in, who is not, and what strangers can do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from orchestrator.node.agent import channel as gang
from orchestrator.node.agent.channel import Channel, ChannelError, LeaderServer, dial, prove
from orchestrator.node.agent.neighbour import knock, open_door
from orchestrator.node.system.sockets import listen
from orchestrator.protocol.gang import Hello

HERE = ("127.0.0.1",)
TOKEN = "the run's token"  # noqa: S105


def hello(node: int = 1) -> Hello:
    return Hello(node, f"n{node}", 2, HERE, 7000)


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run a test's coroutine, bounded in time, and close the channels that it opened."""

    async def bounded() -> None:
        try:
            await asyncio.wait_for(main(), 20)
        finally:
            while opened:
                await opened.pop().close()

    asyncio.run(bounded())


opened: list[Channel] = []


async def join(port: int, node: int = 1, addrs: tuple[str, ...] = HERE) -> Channel:
    opened.append(await dial(addrs, (port,), TOKEN, hello(node)))
    return opened[-1]


class Heard:
    """A leader's server that writes down what happens to it."""

    def __init__(self, token: str = TOKEN) -> None:
        self.server = LeaderServer(token)
        self.joined: list[Hello] = []
        self.messages: list[tuple[int, dict[str, Any]]] = []
        self.gone: list[tuple[int, str]] = []
        self.news = asyncio.Event()
        sock = listen((0,), only_loopback=True)
        self.port = int(sock.getsockname()[1])
        self.sock = sock

    async def open(self) -> None:
        await self.server.open(
            self.sock,
            on_join=lambda who: self._heard(self.joined, who),
            on_message=lambda node, message: self._heard(self.messages, (node, message)),
            on_left=lambda node, reason: self._heard(self.gone, (node, reason)),
        )

    def _heard(self, kept: list[Any], what: Any) -> None:
        kept.append(what)
        self.news.set()

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 5)


@contextlib.asynccontextmanager
async def leader(token: str = TOKEN) -> AsyncIterator[Heard]:
    heard = Heard(token)
    await heard.open()
    try:
        yield heard
    finally:
        await heard.server.close(patience=0.2)


async def raw(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def answer_to(port: int, line: bytes) -> bytes:
    """What the leader says after its greeting to one who answers with this line, until it closes."""
    reader, writer = await raw(port)
    assert json.loads(await reader.readline())["orch"] == "gang"
    with contextlib.suppress(ConnectionError):
        writer.write(line)
        await writer.drain()
    said = b""
    with contextlib.suppress(ConnectionError):
        said = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return said


@contextlib.asynccontextmanager
async def foreign(say: bytes, *, wait_for_line: bool = False) -> AsyncIterator[int]:
    """Some other program's server, which says something and keeps the connection open."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(say)
        if wait_for_line:
            await reader.readline()
            writer.write(b'{"proof": "\xc3\xa9"}\n')
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


def test_members_and_leader_talk_both_ways() -> None:
    async def main() -> None:
        async with leader() as heard:
            channel = await join(heard.port)
            assert heard.joined == [hello()]
            channel.send({"kind": "exit", "tail": ["é\u2028\n", "\ud800"]})
            await heard.until(lambda: bool(heard.messages))
            assert heard.messages == [(1, {"kind": "exit", "tail": ["é\u2028\n", "\ud800"]})]
            heard.server.send(1, {"kind": "go", "n": 1})
            heard.server.send(1, {"kind": "go", "n": 2})
            heard.server.send(7, {"kind": "go"})  # not there: missed, not an error
            assert [(await channel.receive() or {})["n"] for _ in range(2)] == [1, 2]
            assert channel.peer_addr == "127.0.0.1"
            await channel.close()
            await heard.until(lambda: bool(heard.gone))
            assert heard.gone == [(1, "its agent closed the connection")]

    run(main)


def test_a_wrong_token_is_refused_and_never_joins() -> None:
    async def main() -> None:
        async with leader() as heard:
            with pytest.raises(ChannelError, match="another gang's leader"):
                await dial(HERE, (heard.port,), "another token", hello())
            assert heard.joined == []

    run(main)


@pytest.mark.parametrize(
    "proof", [prove("guess", "leader", "a", "b"), prove(TOKEN, "member", "a", "b"), "", "é", None, 5, [], {"a": 1}]
)
def test_an_impostor_of_the_leader_is_refused(proof: object) -> None:
    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"orch": "gang", "challenge": "0"}\n')
        await reader.readline()
        writer.write(json.dumps({"proof": proof}).encode() + b"\n")
        await reader.read()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(impostor, "127.0.0.1", 0)
        with pytest.raises(ChannelError, match="another gang's leader listens there"):
            await dial(HERE, (server.sockets[0].getsockname()[1],), TOKEN, hello())
        server.close()

    run(main)


def test_reflecting_the_members_own_proof_does_not_make_a_leader() -> None:
    async def mirror(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"orch": "gang", "challenge": "0"}\n')
        writer.write(await reader.readline())
        await reader.read()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(mirror, "127.0.0.1", 0)
        with pytest.raises(ChannelError, match="another gang's leader"):
            await dial(HERE, (server.sockets[0].getsockname()[1],), TOKEN, hello())
        server.close()

    run(main)


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\n",
        b"{}\n",
        b"[1]\n",
        b"null\n",
        b"[" * 100_000 + b"\n",
        b'{"hello": 1, "challenge": "x", "proof": "y"}\n',
        b'{"hello": {}, "challenge": "x", "proof": "\xc3\xa9"}\n',
        b'{"hello": {}, "challenge": "\\ud800", "proof": "\\ud800"}\n',
        b"x" * (2 * gang.MAX_LINE) + b"\n",
    ],
    ids=["http", "tls", "empty", "list", "null", "nested", "hello", "non-ascii", "surrogate", "long"],
)
def test_garbage_is_turned_away_and_harms_nobody(line: bytes) -> None:
    async def main() -> None:
        problems: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        async with leader() as heard:
            assert b"proof" not in await answer_to(heard.port, line)
            await join(heard.port)
            assert heard.joined == [hello()]
        assert problems == []

    run(main)


def test_a_member_that_breaks_the_protocol_is_lost_with_the_reason() -> None:
    async def main() -> None:
        async with leader() as heard:
            first = await join(heard.port, 1)
            second = await join(heard.port, 2)
            first.writer.write(b"x" * (gang.MAX_LINE + 10) + b"\n")
            await heard.until(lambda: len(heard.gone) == 1)
            second.writer.write(b"[1]\n")
            await heard.until(lambda: len(heard.gone) == 2)
            assert heard.gone == [
                (1, f"it sent a line of more than {gang.MAX_LINE} bytes"),
                (2, "it sent a line that is not a JSON object"),
            ]

    run(main)


def test_replayed_bytes_of_a_handshake_are_refused() -> None:
    recorded: list[bytes] = []

    async def main() -> None:
        async with leader() as heard:

            async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                up_reader, up = await raw(heard.port)
                writer.write(await up_reader.readline())
                recorded.append(await reader.readline())
                up.write(recorded[0])
                writer.write(await up_reader.readline())
                await reader.read()
                up.close()
                writer.close()

            server = await asyncio.start_server(proxy, "127.0.0.1", 0)
            channel = await dial(HERE, (server.sockets[0].getsockname()[1],), TOKEN, hello())
            assert heard.joined == [hello()]
            await channel.close()
            await heard.until(lambda: bool(heard.gone))
            heard.server.members.clear()  # so that only the proof can stand in the way
            assert await answer_to(heard.port, recorded[0]) == b""
            assert len(heard.joined) == 1
            server.close()

    run(main)


def test_a_second_agent_of_a_node_does_not_displace_the_first() -> None:
    async def main() -> None:
        async with leader() as heard:
            first = await join(heard.port)
            with pytest.raises(ChannelError, match="this node has joined already"):
                await dial(HERE, (heard.port,), TOKEN, hello())
            heard.server.send(1, {"kind": "go"})
            assert await first.receive() == {"kind": "go"}
            assert (len(heard.joined), heard.gone) == (1, [])

    run(main)


def test_a_leader_that_is_reached_by_two_addresses_is_joined_once() -> None:
    """Both handshakes go on at once: the channel that is kept must be the one that the leader keeps."""

    async def main() -> None:
        for _ in range(5):
            async with leader() as heard:
                channel = await join(heard.port, addrs=("127.0.0.1", "localhost"))
                channel.send({"kind": "heartbeat"})
                await heard.until(lambda heard=heard: bool(heard.messages))
                assert (len(heard.joined), heard.gone) == (1, [])
                await channel.close()

    run(main)


def test_the_leader_is_found_among_ports_that_others_hold() -> None:
    async def main() -> None:
        async with (
            leader() as heard,
            leader("another run's token") as stranger,
            foreign(b"SSH-2.0-OpenSSH_9.2\r\n") as ssh,
            foreign(b"[" * 100_000 + b"\n") as nested,
            foreign(b'{"orch": "gang", "challenge": "x"}\n', wait_for_line=True) as impostor,
            foreign(b"") as silent,
        ):
            ports = (ssh, silent, impostor, nested, stranger.port, heard.port)
            channel = await dial(HERE, ports, TOKEN, hello())
            assert (heard.joined, stranger.joined) == ([hello()], [])
            await channel.close()

    run(main)


def test_a_failed_dial_tells_what_went_wrong_by_address_and_port() -> None:
    async def main() -> None:
        closed = listen((0,), only_loopback=True)
        port = closed.getsockname()[1]
        closed.close()
        async with foreign(b"220 mail\r\n") as mail:
            with pytest.raises(ChannelError) as caught:
                await dial(("127.0.0.1", "not..a.name"), (port, mail), TOKEN, hello())
        text = str(caught.value)
        assert f"127.0.0.1: refused (ports {port})" in text
        assert f"127.0.0.1: a line that is not JSON (ports {mail})" in text
        assert "not..a.name" in text

    run(main)


def test_strangers_that_say_nothing_do_not_keep_members_out() -> None:
    async def main() -> None:
        async with leader() as heard:
            quiet = [await raw(heard.port) for _ in range(gang.MAX_STRANGERS - 1)]
            for reader, _ in quiet:
                await reader.readline()
            channel = await join(heard.port)
            assert heard.joined == [hello()]
            await channel.close()
            for _, writer in quiet:
                writer.close()

    run(main)


def test_more_strangers_than_that_are_dropped_until_their_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang, "HANDSHAKE_SECONDS", 0.3)

    async def main() -> None:
        async with leader() as heard:
            quiet = [await raw(heard.port) for _ in range(gang.MAX_STRANGERS + 20)]
            for reader, _ in quiet:
                await asyncio.wait_for(reader.read(), 5)  # each is closed by the leader
            channel = await join(heard.port)
            assert heard.server.strangers == 0
            await channel.close()
            for _, writer in quiet:
                writer.close()

    run(main)


def test_a_stranger_that_speaks_slowly_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang, "HANDSHAKE_SECONDS", 0.2)

    async def main() -> None:
        async with leader() as heard:
            reader, writer = await raw(heard.port)
            await reader.readline()
            with contextlib.suppress(ConnectionError):
                for letter in b'{"hello": {}':
                    writer.write(bytes([letter]))
                    await asyncio.sleep(0.03)  # the trickle is the point
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
            assert heard.joined == []
            writer.close()

    run(main)


def test_closing_lets_members_go_first() -> None:
    async def main() -> None:
        heard = Heard()
        await heard.open()
        channel = await join(heard.port)
        heard.server.send(1, {"kind": "bye"})
        closing = asyncio.create_task(heard.server.close(patience=5))
        assert await channel.receive() == {"kind": "bye"}
        assert not closing.done()
        await channel.close()
        await closing
        assert heard.gone == [(1, "its agent closed the connection")]

    run(main)


def test_closing_does_not_wait_for_ever() -> None:
    async def main() -> None:
        heard = Heard()
        await heard.open()
        channel = await join(heard.port)
        await heard.server.close(patience=0.1)
        assert await channel.receive() is None
        await channel.close()

    run(main)


# -- listening


@pytest.fixture
def held() -> Iterator[list[int]]:
    socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    yield [sock.getsockname()[1] for sock in socks]
    for sock in socks:
        sock.close()


def test_the_first_free_port_is_taken(held: list[int]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = probe.getsockname()[1]
    with listen((*held, free), only_loopback=True) as sock:
        assert sock.getsockname() == ("127.0.0.1", free)


@pytest.mark.parametrize("only_loopback", [True, False])
def test_ports_that_are_all_taken_are_named(held: list[int], only_loopback: bool) -> None:
    with pytest.raises(OSError, match=f"all of the gang's ports are taken: {held[0]}, {held[1]}, {held[2]}"):
        listen(tuple(held), only_loopback=only_loopback)


# -- the way to the neighbour


def test_a_neighbours_door_says_who_it_is() -> None:
    async def main() -> None:
        door, port = await open_door(TOKEN, 2, only_loopback=True)
        assert await knock(HERE, port, TOKEN, 2) is None
        assert "something else answers there" in (await knock(HERE, port, TOKEN, 1) or "")
        assert "something else answers there" in (await knock(HERE, port, "another token", 2) or "")
        door.close()
        await door.wait_closed()
        assert await knock(HERE, port, TOKEN, 2) == f"127.0.0.1:{port}: refused"
        assert await knock((), port, TOKEN, 2) == "it reported no address"

    run(main)


@pytest.mark.parametrize("said", [b"x" * (2 * gang.MAX_LINE) + b"\n", "é\n".encode(), b"\n"])
def test_whatever_a_stranger_says_at_the_door_is_only_the_wrong_answer(said: bytes) -> None:
    async def main() -> None:
        async with foreign(said) as port:
            assert (await knock(HERE, port, TOKEN, 2) or "").startswith(f"127.0.0.1:{port}: ")

    run(main)


def test_one_good_address_is_enough() -> None:
    async def main() -> None:
        door, port = await open_door(TOKEN, 2, only_loopback=True)
        assert await knock(("127.0.0.2", "127.0.0.1"), port, TOKEN, 2) is None
        door.close()

    run(main)


def test_a_channel_that_is_gone_can_still_be_sent_to() -> None:
    async def main() -> None:
        async with leader() as heard:
            channel: Channel = await dial(HERE, (heard.port,), TOKEN, hello())
            await channel.close()
            channel.send({"kind": "heartbeat"})
            assert await channel.receive() is None

    run(main)

"""The gang's connections over real loopback sockets: who is let in, who is found, what is said."""

from __future__ import annotations

import asyncio
import getpass
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.node.agent import joining
from orchestrator.node.agent import tls as agent_tls
from orchestrator.node.agent.channel import MAX_LINE, Channel, ChannelError, pair
from orchestrator.node.agent.joining import dial, introduce
from orchestrator.node.system.sockets import ANY_PORT, ANYWHERE, listen, port_of
from orchestrator.node.system.tcp_peers import listeners
from orchestrator.protocol.messages import Bye, FindModule, LeaderHeartbeat, Trouble
from tests.unit.node.agent.members import ANOTHER, HERE, TLS, Heard, foreign, hello, join, leader, run


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dial waits for a better address as long as this machine may take to get to it."""
    monkeypatch.setattr(joining, "PREFERENCE_SECONDS", 20.0)


def test_members_and_leader_talk_both_ways() -> None:
    async def main() -> None:
        async with leader() as heard:
            channel = await join(heard.port)
            assert heard.joined == [hello()]
            report = Trouble("é\u2028\n", tail=("\ud800",))
            channel.send(report.to_json())
            await heard.until(lambda: bool(heard.messages))
            assert heard.messages == [(1, report)]
            for node in (1, 1, 7):  # 7 is not there: missed, not an error
                heard.server.send(node, FindModule("m"))
            assert [await channel.receive() for _ in range(2)] == [FindModule("m").to_json()] * 2
            assert (channel.own_addr, channel.peer_addr) == ("127.0.0.1", "127.0.0.1")
            await channel.close()
            await heard.until(lambda: bool(heard.gone))
            assert heard.gone == [(1, "its agent closed the connection")]

    run(main)


def test_node_0_is_a_member_without_any_address() -> None:
    async def main() -> None:
        async with leader() as heard:
            mine, leaders = await pair()
            served = asyncio.create_task(heard.server.serve(leaders))
            await introduce(mine, hello(0))
            assert (heard.joined, heard.reached, mine.peer_addr) == ([hello(0)], [""], "")
            await mine.close()
            await served
            await leaders.close()
            assert heard.gone == [(0, "its agent closed the connection")]

    run(main)


def test_the_leader_tells_by_which_of_its_addresses_it_was_reached(patient: None) -> None:
    async def main() -> None:
        async with leader(addrs=("127.0.0.1", "127.0.0.2")) as heard:
            await join(heard.port, 1, ("127.0.0.2",))
            await join(heard.port, 2, ("127.0.0.3", "127.0.0.2", "127.0.0.1"))  # the first one at which it listens
            await join(heard.port, 3, ("127.0.0.1", "127.0.0.2"))
            assert heard.reached == ["127.0.0.2", "127.0.0.2", "127.0.0.1"]

    run(main)


class SlowFirst:
    """The way to 127.0.0.1 takes longer than the one to any other address."""

    def __init__(self) -> None:
        self.others = asyncio.Event()

    async def connect(self, addr: str, port: int) -> Channel:
        if addr == "127.0.0.1":
            await self.others.wait()
        channel = await TLS.connect(addr, port)
        self.others.set()
        return channel


def test_all_nodes_take_the_first_address_at_which_node_0_answers_even_if_another_is_quicker(patient: None) -> None:
    async def main() -> None:
        async with leader(addrs=("127.0.0.1", "127.0.0.2")) as heard:
            await join(heard.port, 1, ("127.0.0.1", "127.0.0.2"), tls=SlowFirst())  # type: ignore[arg-type]
            assert heard.reached == ["127.0.0.1"]

    run(main)


def test_a_member_that_breaks_the_protocol_is_lost_with_the_reason() -> None:
    async def main() -> None:
        async with leader() as heard:
            first = await join(heard.port, 1)
            second = await join(heard.port, 2)
            first.writer.write(b"x" * (MAX_LINE + 10) + b"\n")
            await heard.until(lambda: len(heard.gone) == 1)
            second.writer.write(b"[1]\n")
            await heard.until(lambda: len(heard.gone) == 2)
            assert heard.gone == [
                (1, f"it sent a line of more than {MAX_LINE} bytes"),
                (2, "it sent a line that is not a JSON object"),
            ]

    run(main)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{}\n", "the connection was not meant for node 0"),
        (b'{"to": 1, "kind": "probe"}\n', "the connection was not meant for node 0"),  # put here by who can't read it
        (b'{"hello": {"node_rank": 1, "host": "x", "nproc": 1}}\n', "the connection was not meant for node 0"),
        (b'{"to": "leader", "hello": 1}\n', "the first message of this node has another version"),
        (b'{"to": "leader", "hello": {"rank": 1}}\n', "the first message of this node has another version"),
        (b"[1]\n", "a line that is not a JSON object"),
        (b"[" * 100_000 + b"\n", "a line that is not JSON"),
    ],
)
def test_what_is_no_hello_joins_nothing(line: bytes, reason: str) -> None:
    async def main() -> None:
        async with leader() as heard:
            channel = await dial(TLS, HERE, (heard.port,))
            channel.writer.write(line)
            assert await channel.answer(5) == {"refused": reason}
            assert await channel.receive() is None
            assert heard.joined == []
            await channel.close()

    run(main)


def test_a_second_agent_of_a_node_does_not_displace_the_first() -> None:
    async def main() -> None:
        async with leader() as heard:
            first = await join(heard.port)
            with pytest.raises(ChannelError, match="node 0: this node has joined already"):
                await join(heard.port)
            heard.server.send(1, LeaderHeartbeat())
            assert await first.receive() == {"kind": "heartbeat"}
            assert (len(heard.joined), heard.gone) == (1, [])

    run(main)


def test_a_leader_that_is_reached_by_two_addresses_is_joined_once() -> None:
    """Both connections are made at once: the channel that is kept must be the one that the leader keeps."""

    async def main() -> None:
        for _ in range(5):
            async with leader() as heard:
                channel = await join(heard.port, addrs=("127.0.0.1", "localhost"))
                channel.send({"kind": "heartbeat"})
                await heard.until(lambda heard=heard: bool(heard.messages))
                assert (len(heard.joined), heard.gone) == (1, [])
                await channel.close()
                assert heard.listener.words() == ""  # the other connection is a member's as well

    run(main)


def test_the_leader_is_found_among_ports_that_others_hold() -> None:
    async def main() -> None:
        async with (
            leader() as heard,
            leader(ANOTHER) as stranger,
            foreign(b"SSH-2.0-OpenSSH_9.2\r\n") as ssh,
            foreign(b"[" * 100_000 + b"\n") as nested,
            foreign(b"\x16\x03\x03\x00\x02\x02\x28") as half,
            foreign(b"") as silent,
        ):
            channel = await dial(TLS, HERE, (ssh, silent, half, nested, stranger.port, heard.port))
            await introduce(channel, hello())
            assert (heard.joined, stranger.joined) == ([hello()], [])
            await channel.close()

    run(main)


def test_a_failed_dial_tells_what_went_wrong_by_address_and_port(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        (closed,) = listen(HERE, ANY_PORT)
        port = closed.getsockname()[1]
        closed.close()
        async with (
            foreign(b"220 mail\r\n") as mail,
            foreign(b"", closes=True) as short,
            leader(ANOTHER) as stranger,
        ):
            with pytest.raises(ChannelError) as caught:
                await dial(TLS, ("127.0.0.1", "not..a.name"), (port, mail, short, stranger.port))
        text = str(caught.value)
        assert f"127.0.0.1: refused (ports {port})" in text
        assert f"127.0.0.1: something else listens there (ports {mail})" in text
        assert f"it closed the connection before it had proved to belong to this run (ports {short})" in text
        assert (
            f"the program that listens at this address does not have this run's certificate (ports {stranger.port})"
            in text
        )
        assert "not..a.name" in text
        async with foreign(b"") as silent:
            monkeypatch.setattr(agent_tls, "ANSWER_SECONDS", 0.3)
            with pytest.raises(ChannelError) as caught:
                await dial(TLS, HERE, (silent,))
        assert f"127.0.0.1: it did not prove to belong to this run within 0.3 s (ports {silent})" in str(caught.value)

    run(main)


def test_closing_lets_members_go_first() -> None:
    async def main() -> None:
        heard = Heard()
        channel = await join(heard.port)
        heard.server.send(1, Bye("failed", 1))
        closing = asyncio.create_task(heard.listener.close(patience=5))
        assert await channel.receive() == Bye("failed", 1).to_json()
        assert not closing.done()
        await channel.close()
        await closing
        assert heard.gone == [(1, "its agent closed the connection")]

    run(main)


def test_closing_does_not_wait_for_ever() -> None:
    async def main() -> None:
        heard = Heard()
        channel = await join(heard.port)
        await heard.listener.close(patience=0.1)
        assert await channel.receive() is None
        await channel.close()

    run(main)


def test_a_channel_that_is_gone_can_still_be_sent_to() -> None:
    async def main() -> None:
        async with leader() as heard:
            channel = await join(heard.port)
            await channel.close()
            channel.send({"kind": "heartbeat"})
            assert await channel.receive() is None

    run(main)


# -- listening


@pytest.fixture
def held() -> Iterator[list[int]]:
    socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    yield [sock.getsockname()[1] for sock in socks]
    for sock in socks:
        sock.close()


def test_the_first_port_that_is_free_at_all_addresses_is_taken(held: list[int]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = probe.getsockname()[1]
    socks = listen(("127.0.0.2", "127.0.0.1"), (*held, free))
    assert [sock.getsockname() for sock in socks] == [("127.0.0.2", free), ("127.0.0.1", free)]
    for sock in socks:
        sock.close()


@pytest.mark.parametrize("addr", ["127.0.0.1", ANYWHERE])
def test_ports_that_are_all_taken_are_named(held: list[int], addr: str) -> None:
    me = re.escape(f"{getpass.getuser()} (uid {os.getuid()})")
    words = f"all of the agents' rendezvous ports are taken, by {me}: {held[0]}, {held[1]}, {held[2]}"
    with pytest.raises(OSError, match=words):
        listen((addr,), tuple(held))


def test_whose_the_ports_are_is_told_as_far_as_the_kernel_does(tmp_path: Path) -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = "   0: 0100007F:{:04X} 00000000:0000 {} 00000000:00000000 00:00000000 00000000 {:5} 0 664802 1 0000 100\n"
    rows = [(20000, "0A", 0), (20001, "0A", 4_000_000_001), (20002, "01", 4_000_000_002), (20003, "0A", 4_000_000_003)]
    table, other = tmp_path / "tcp", tmp_path / "tcp6"
    table.write_text(head + "".join(row.format(*each) for each in rows))
    both = (str(table), str(other))
    assert listeners((20000, 20001, 20002), tables=both) == "root (uid 0), a user (uid 4000000001)"
    assert listeners((20004,), tables=both) == ""
    other.write_text(head + "".join(row.format(20000, "0A", uid) for uid in range(4_000_000_000, 4_000_000_005)))
    assert listeners((20000,), tables=both).endswith("a user (uid 4000000001), 3 other users")


def test_without_a_port_that_is_asked_for_the_system_finds_one_that_all_addresses_share() -> None:
    socks = listen(("127.0.0.1", "127.0.0.2"), ANY_PORT)
    assert {sock.getsockname()[1] for sock in socks} == {port_of(socks)}
    for sock in socks:
        sock.close()
    for ports in (ANY_PORT, (20000, 20001)):
        with pytest.raises(OSError, match=r"no port can be opened at 192\.0\.2\.1: Cannot assign requested address"):
            listen(("192.0.2.1",), ports)

"""What somebody can do who holds a port, sits in between, or dials: he is not believed, and is not in the way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from orchestrator.node.agent import listener as strangers
from orchestrator.node.agent import tls as agent_tls
from orchestrator.node.agent.channel import Channel, ChannelError
from orchestrator.node.agent.joining import dial
from orchestrator.node.agent.neighbour import NeighbourServer, probe
from orchestrator.protocol.messages import FindModule, Trouble, Used
from tests.patience import PATIENCE
from tests.unit.node.agent.members import HERE, TLS, Heard, Streams, hello, join, leader, raw, run

HEADER = 5  # of a TLS record: its kind, its version, its length
Records = list[bytes]


class Relay:
    """A man in the middle: what both say passes through him, record by record, as he pleases."""

    def __init__(self, target: int) -> None:
        self.target, self.seen = target, bytearray()
        self.to_leader: Records = []
        self.change: Callable[[bytes], Records] = lambda record: [record]
        self.tasks: list[asyncio.Task[None]] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def open(self) -> int:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self.server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up = await raw(self.target)
        self.writers += [writer, up]
        await asyncio.gather(self._pass(reader, up, to_leader=True), self._pass(up_reader, writer, to_leader=False))

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, to_leader: bool) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await source.readexactly(HEADER)
                record = head + await source.readexactly(int.from_bytes(head[3:], "big"))
                self.seen += record
                if to_leader:
                    self.to_leader.append(record)
                for each in self.change(record) if to_leader else [record]:
                    target.write(each)
        target.close()

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()

    async def close(self) -> None:
        self.cut()
        self.server.close()
        await self.server.wait_closed()


@contextlib.asynccontextmanager
async def relayed() -> AsyncIterator[tuple[Heard, Relay, Channel]]:
    """A member whose every byte passes through a relay, and who has joined."""
    async with leader() as heard:
        relay = Relay(heard.port)
        try:
            yield heard, relay, await join(await relay.open())
        finally:
            await relay.close()


def test_a_relay_reads_nothing_and_is_no_address_of_node_0() -> None:
    async def main() -> None:
        async with relayed() as (heard, relay, channel):
            channel.send(Trouble("precious").to_json())
            await heard.until(lambda: bool(heard.messages))
            heard.server.send(1, FindModule("precious"))
            assert await channel.receive() == FindModule("precious").to_json()
            assert heard.reached == ["127.0.0.1"]  # node 0's own word, whatever was dialled
            assert relay.seen
            assert not any(word in relay.seen for word in (b"precious", b"kind", b"hello", b"node_rank"))

    run(main)


def flipped(record: bytes) -> Records:
    return [record[:-1] + bytes([record[-1] ^ 1])]


def twice(record: bytes) -> Records:
    return [record, record]


@pytest.mark.parametrize(("change", "most"), [(flipped, 0), (twice, 1)], ids=["rewritten", "replayed"])
def test_a_record_that_was_tampered_with_ends_the_connection(change: Callable[[bytes], Records], most: int) -> None:
    async def main() -> None:
        async with relayed() as (heard, relay, channel):
            relay.change = change
            channel.send(Trouble("0").to_json())
            await heard.until(lambda: bool(heard.gone))
            assert heard.messages in ([], [(1, Trouble("0"))] * most)
            assert heard.gone == [(1, "its agent closed the connection")]

    run(main)


def test_records_in_another_order_end_the_connection() -> None:
    async def main() -> None:
        async with relayed() as (heard, relay, channel):
            kept: Records = []

            def swapped(record: bytes) -> Records:
                kept.append(record)
                return kept[::-1] if len(kept) == 2 else []

            relay.change = swapped
            channel.send(Trouble("1").to_json())
            channel.send(Used().to_json())
            await heard.until(lambda: bool(heard.gone))
            assert heard.messages == []

    run(main)


def test_a_connection_that_is_cut_is_a_lost_member_and_nothing_else() -> None:
    async def main() -> None:
        async with relayed() as (heard, relay, channel):
            relay.cut()
            await heard.until(lambda: bool(heard.gone))
            assert (heard.messages, heard.gone) == ([], [(1, "its agent closed the connection")])
            assert await channel.receive() is None

    run(main)


def test_a_conversation_that_was_recorded_joins_nothing_when_it_is_played_again() -> None:
    async def main() -> None:
        async with relayed() as (heard, relay, channel):
            channel.send(Trouble("0").to_json())
            await heard.until(lambda: bool(heard.messages))
            heard.server.members.clear()  # so that only the proof can stand in the way
            reader, writer = await raw(heard.port)
            with contextlib.suppress(ConnectionError):
                writer.write(b"".join(relay.to_leader))
                while await reader.read(1 << 16):
                    pass
            writer.close()
            assert (len(heard.joined), len(heard.messages), heard.server.members) == (1, 1, {})
            assert heard.listener.words() == "1 connection from 127.0.0.1 could not prove to belong to this run"

    run(main)


def test_a_member_that_is_led_to_another_listener_of_its_run_joins_nothing() -> None:
    """Both sides prove themselves; what was asked is inside, and says whom it was meant for."""

    async def main() -> None:
        server = NeighbourServer(TLS, 2, HERE)
        with pytest.raises(ChannelError, match="node 0: another program answers"):
            await join(server.port)
        async with leader() as heard:
            assert await probe(TLS, HERE, heard.port, 2) is not None
            assert heard.joined == []
        await server.close()

    run(main)


async def idle(port: int, count: int) -> list[Streams]:
    return [await raw(port) for _ in range(count)]


async def dropped(quiet: list[Streams]) -> int:
    """How many have been closed, out of those whose turn it must have been."""
    count = 0
    for reader, _ in quiet:
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), PATIENCE)
        count += 1
    return count


def test_seventy_idle_strangers_keep_no_member_out_and_are_named() -> None:
    async def main() -> None:
        async with leader() as heard:
            quiet = await idle(heard.port, 70)
            await join(heard.port)
            assert heard.joined == [hello()]
            # The oldest have made room; the newest are still waited for.
            assert await dropped(quiet[:6]) == 6
            assert heard.listener.words() in (
                f"{count} connections from 127.0.0.1 could not prove to belong to this run" for count in (6, 7)
            )
            assert heard.told[:3] == [{"127.0.0.1": 1}, {"127.0.0.1": 2}, {"127.0.0.1": 4}]

    run(main)


def test_one_address_elsewhere_has_four_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "is_of_this_machine", lambda addr, sock: False)

    async def main() -> None:
        async with leader() as heard:
            quiet = await idle(heard.port, 9)
            assert await dropped(quiet[:5]) == 5
            assert len(heard.listener.strangers) == 4
            await join(heard.port)

    run(main)


def test_a_stranger_has_its_time_however_slowly_it_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_tls, "PROOF_SECONDS", 0.2)

    async def main() -> None:
        async with leader() as heard:
            reader, writer = await raw(heard.port)
            with contextlib.suppress(ConnectionError):
                for byte in b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03":
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.03)  # the trickle is the point
                assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
            writer.close()
            assert (heard.joined, len(heard.listener.strangers)) == ([], 0)

    run(main)


def test_a_member_that_never_says_hello_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.node.agent import leader_service

    monkeypatch.setattr(leader_service, "HELLO_SECONDS", 0.2)

    async def main() -> None:
        async with leader() as heard:
            channel = await dial(TLS, HERE, (heard.port,))
            assert await channel.receive() == {"refused": "no answer within 0.2 s"}
            await channel.close()
            assert heard.listener.words() == ""

    run(main)

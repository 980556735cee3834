"""The way to a neighbour: it answers to its own number, and to members of its run alone."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from orchestrator.node.agent import neighbour
from orchestrator.node.agent.channel import Channel
from orchestrator.node.agent.neighbour import NeighbourServer, probe, request
from orchestrator.protocol.messages import Keep
from tests.unit.node.agent.members import ANOTHER, HERE, TLS, foreign, leader, raw, run
from tests.unit.node.agent.test_attacks import Relay

KEEP = b'{"to": 1, "kind": "keep", "checkpoint": "a", "listing": 0}\n'


def test_a_neighbour_says_who_it_is_to_members_of_its_run_alone() -> None:
    async def main() -> None:
        server = NeighbourServer(TLS, 2, HERE)
        assert await probe(TLS, HERE, server.port, 2) is None
        other = f"127.0.0.1:{server.port}: another node of this run answers there"
        assert await probe(TLS, HERE, server.port, 1) == other
        stranger = (
            f"127.0.0.1:{server.port}: the program that listens at this address does not have this run's certificate"
        )
        assert await probe(ANOTHER, HERE, server.port, 2) == stranger
        await server.close()
        assert await probe(TLS, HERE, server.port, 2) == f"127.0.0.1:{server.port}: refused"
        assert await probe(TLS, (), server.port, 2) == "the node reported no address"

    run(main)


def test_another_listener_of_the_run_is_not_taken_for_the_neighbour() -> None:
    """Whoever sits in between can't read what is asked, and may still put the question to another member."""

    async def main() -> None:
        async with leader() as heard:
            found = await probe(TLS, HERE, heard.port, 2)
            assert found == f"127.0.0.1:{heard.port}: another node of this run answers there"
            assert heard.joined == []

    run(main)


@pytest.mark.parametrize("said", [b"x" * 600_000 + b"\n", "é\n".encode() * 9, b"\n" * 9])
def test_whatever_else_answers_there_is_only_the_wrong_answer(said: bytes) -> None:
    async def main() -> None:
        async with foreign(said) as port:
            assert await probe(TLS, HERE, port, 2) == f"127.0.0.1:{port}: something else listens there"

    run(main)


def test_a_path_that_takes_small_packets_only_is_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a tunnel on the way has a smaller MTU, and nobody says so: the handshake gets through."""
    monkeypatch.setattr(neighbour, "ANSWER_SECONDS", 0.5)

    async def main() -> None:
        server, relay = NeighbourServer(TLS, 2, HERE), Relay(0)
        relay.target = server.port
        lost: list[bytes] = []

        def change(record: bytes) -> list[bytes]:
            if lost or len(record) > 8000:
                lost.append(record)  # and what follows waits for it, as TCP has it
            return [] if lost else [record]

        relay.change = change
        port = await relay.open()
        assert await probe(TLS, HERE, port, 2) == (
            f"127.0.0.1:{port}: it can be reached, but 64 KiB that were sent there did not come back: "
            "no answer within 0.5 s; is the MTU smaller on the way?"
        )
        await relay.close()
        await server.close()

    run(main)


def test_one_good_address_is_enough() -> None:
    async def main() -> None:
        server = NeighbourServer(TLS, 2, HERE)
        assert await probe(TLS, ("127.0.0.2", "127.0.0.1"), server.port, 2) is None
        await server.close()

    run(main)


def test_nothing_is_taken_from_strangers_nor_what_is_meant_for_another_node() -> None:
    taken: list[Any] = []
    told: list[dict[str, int]] = []

    async def take(asked: Any, channel: Channel) -> None:
        taken.append(asked)

    async def main() -> None:
        server = NeighbourServer(TLS, 1, HERE, take=take, tell=lambda counts: told.append(dict(counts)))
        for said in (
            KEEP,
            b"[1, 2, 3]\n",
            b"x" * 100_000 + b"\n",
            b"\n" * 9,
        ):
            reader, writer = await raw(server.port)
            writer.write(said)
            with contextlib.suppress(ConnectionError):
                assert b"problem" not in await reader.read()
            writer.close()
        channel = await request(TLS, HERE, server.port, Keep(2, "a", 0))
        assert await channel.answer(5) == {"node": 1, "problem": "this is node 1"}
        await channel.close()
        assert taken == []
        channel = await request(TLS, HERE, server.port, Keep(1, "a", 0))
        assert await channel.receive() is None
        await channel.close()
        await server.close()
        assert taken == [Keep(1, "a", 0)]
        assert told == [{"127.0.0.1": 1}, {"127.0.0.1": 2}, {"127.0.0.1": 4}]

    run(main)

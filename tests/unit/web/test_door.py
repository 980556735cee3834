"""The door of the page's server: who is admitted, how many connections stay open, and which ones are ended."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from orchestrator.transport import local_users
from orchestrator.transport.local_users import Guard
from orchestrator.web import app as page
from orchestrator.web import door as doors
from orchestrator.web.door import Door, Limits, Visit, through_its_door
from orchestrator.web.listening import close, listen, port_of

SECONDS = 60.0
Dial = Callable[..., Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers all requests but those of /wait."""
    if scope["path"] == "/wait":
        await asyncio.Event().wait()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def spoken(visit: Visit) -> asyncio.Protocol:
    config = uvicorn.Config(through_its_door, http="h11", log_config=None, lifespan="off")
    config.load()
    return H11Protocol(config=config, server_state=uvicorn.Server(config).server_state, app_state={"visit": visit})


@contextlib.asynccontextmanager
async def served(said: list[str], limits: Limits, *, any_user: bool = False) -> AsyncIterator[tuple[Door, Dial]]:
    """A door that is open, and how it is dialled."""
    listeners = listen(0)
    door = Door(answer, listeners, Guard(said.append, any_user=any_user), limits)
    serving, dialled = asyncio.create_task(door.serve(spoken)), list[asyncio.StreamWriter]()

    async def dial(address: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(address, port_of(listeners))
        dialled.append(writer)
        return reader, writer

    try:
        async with asyncio.timeout(SECONDS):
            yield door, dial
    finally:
        for writer in dialled:
            writer.transport.abort()
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        for visit in door.visits:
            visit.drop()
        close(listeners)
        for _ in range(3):  # the transports close in the loop
            await asyncio.sleep(0)


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str = "/") -> bytes:
    """The answer to a request over a connection that stays open."""
    writer.write(b"GET %s HTTP/1.1\r\nhost: x\r\n\r\n" % path.encode())
    await reader.readuntil(b"\r\n\r\n")
    return await reader.readexactly(2)


async def ended(reader: asyncio.StreamReader) -> bool:
    """Return when the connection has been ended by the server."""
    with contextlib.suppress(ConnectionError):
        await reader.read()
    return True


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_ones_own_programs_come_in_by_either_address(address: str) -> None:
    async def story() -> None:
        said = list[str]()
        async with served(said, Limits()) as (door, dial):
            if len(door.listeners) == 1 and ":" in address:
                pytest.skip("this machine has no ::1")
            assert await asked(*await dial(address)) == b"ok"
        assert said == []

    asyncio.run(story())


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (os.geteuid() + 4242, f"uid {os.geteuid() + 4242}"),
        (None, "a user whom the kernel does not tell"),
    ],
)
def test_a_user_who_is_refused_is_named_once(monkeypatch: pytest.MonkeyPatch, owner: int | None, name: str) -> None:
    monkeypatch.setattr(local_users, "owner_of_peer", lambda _: owner)

    async def story(*, any_user: bool) -> list[str]:
        said = list[str]()
        async with served(said, Limits(), any_user=any_user) as (door, dial):
            for _ in range(3):
                reader, writer = await dial()
                if any_user:
                    assert await asked(reader, writer) == b"ok"
                else:
                    assert await ended(reader)
            assert len(door.visits) == (3 if any_user else 0)
        return said

    assert asyncio.run(story(any_user=False)) == [f"refused a connection of {name}"]
    assert asyncio.run(story(any_user=True)) == []


def test_a_program_that_has_gone_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()):
            connection, _ = server.accept()
        with connection:
            connection.recv(1)  # its end has arrived
            assert not Guard(said.append).admits(connection)
    assert said == []


def test_of_many_users_a_hundred_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    guard = Guard(said.append)
    for uid in range(70_000, 80_000):
        guard.name(uid, "refused")
    assert len(said) == local_users.MOST_NAMED


def test_the_oldest_idle_connection_makes_room() -> None:
    async def story() -> None:
        async with served([], Limits(connections=3)) as (door, dial):
            first, second, waiting = await dial(), await dial(), await dial()
            assert await asked(*first) == b"ok"
            assert await asked(*second) == b"ok"  # the first one is idle for longer
            waiting[1].write(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
            while not any(visit.answering for visit in door.visits):
                await asyncio.sleep(0)
            third = await dial()
            assert await asked(*third) == b"ok"
            assert await ended(first[0])
            assert await asked(*second) == b"ok"
            assert await asked(*await dial()) == b"ok"
            assert await ended(third[0])
            assert [visit.answering for visit in door.visits] == [0, 1, 0]

    asyncio.run(story())


def test_many_connections_of_one_user_are_no_hindrance_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = iter([7, 8, *[9] * 20])
    monkeypatch.setattr(doors, "owner_of_peer", lambda _: next(owners))

    async def story() -> None:
        async with served([], Limits(connections=6), any_user=True) as (door, dial):
            others = [await dial(), await dial()]
            for each in others:
                assert await asked(*each) == b"ok"
            for _ in range(20):
                assert await asked(*await dial()) == b"ok"
            for each in others:
                assert await asked(*each) == b"ok"
            assert [visit.owner for visit in door.visits] == [7, 8, 9, 9, 9, 9]

    asyncio.run(story())


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nhost: x\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET / HT",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nx",
    ],
)
def test_a_request_that_does_not_arrive_is_ended(sent: bytes) -> None:
    async def story() -> None:
        async with served([], Limits(idle_seconds=0.1)) as (_, dial):
            reader, writer = await dial()
            writer.write(sent)
            assert await ended(reader)

    asyncio.run(story())


def test_a_request_that_is_being_answered_is_not_ended() -> None:
    async def story() -> None:
        async with served([], Limits(idle_seconds=0.05)) as (door, dial):
            busy = await dial()
            busy[1].write(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
            while not any(visit.answering for visit in door.visits):
                await asyncio.sleep(0)
            for _ in range(3):  # each of these is idle for longer than is allowed
                reader, _ = await dial()
                assert await ended(reader)
            assert door.visits[0].answering == 1

    asyncio.run(story())


def test_without_a_file_for_a_connection_an_idle_one_is_ended_and_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(doors, "PAUSE_SECONDS", 0.01)

    async def story() -> None:
        async with served([], Limits()) as (_, dial):
            first = await dial()
            assert await asked(*first) == b"ok"
            loop, left = asyncio.get_running_loop(), [2]
            accept = loop.sock_accept

            async def full(listener: socket.socket) -> Any:
                found = await accept(listener)
                if left[0]:
                    left[0] -= 1
                    found[0].close()
                    raise OSError(errno.EMFILE, "Too many open files")
                return found

            monkeypatch.setattr(loop, "sock_accept", full)
            for _ in range(3):
                second = await dial()
                await asyncio.sleep(0)
            assert await ended(first[0])
            assert await asked(*await dial()) == b"ok"
            second[1].close()

    asyncio.run(story())
    assert caplog.messages == []


def test_what_a_page_sends_has_to_arrive_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "BODY_SECONDS", 0.05)

    class Slow:
        async def stream(self) -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.Event().wait()

    with pytest.raises(page.HTTPException) as caught:
        asyncio.run(page._body(Slow()))  # type: ignore[arg-type]
    assert caught.value.status_code == 408

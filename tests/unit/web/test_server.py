"""The ports of the page's server, and its log."""

from __future__ import annotations

import contextlib
import logging
import socket
from pathlib import Path

import pytest

from orchestrator.cli.render.runs import note
from orchestrator.errors import UsageError
from orchestrator.transport import local_users
from orchestrator.web import files
from orchestrator.web.door import Door
from orchestrator.web.files import Server
from orchestrator.web.listening import port_of
from orchestrator.web.server import MOST_LOG, BoundedLog, Detached, Ports, listen_all, serve


def test_a_kernel_that_does_not_tell_users_needs_the_users_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_users, "can_tell_owners", lambda: False)
    with pytest.raises(UsageError) as caught:
        listen_all(0)
    assert "does not report which user opened a connection" in caught.value.message
    assert "orch ui --any-user" in (caught.value.hint or "")
    listen_all(0, any_user=True).close()


def test_a_metrics_port_that_is_taken_leaves_no_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(UsageError) as caught:
        listen_all(0, other.getsockname()[1])
    assert caught.value.hint == "give another one: --metrics-port N"


def test_a_door_that_fails_ends_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object) -> None:
        raise RuntimeError("a door")

    monkeypatch.setattr(Door, "serve", fails)
    ports, ready = listen_all(0, any_user=True), list[Server]()
    with contextlib.closing(ports), pytest.raises(RuntimeError, match="a door"):
        serve(tmp_path, note, print, ports, lambda server, _: ready.append(server))
    assert len(ready) == 1
    assert files.server_of(tmp_path) is None


@pytest.mark.parametrize("token_file", [None, Path("/tmp/token")])
def test_a_background_process_has_the_same_ports(token_file: Path | None) -> None:
    ports = listen_all(0, token_file=token_file, any_user=True)
    told = Detached.of(Path("/root"), ports)
    inherited = told.ports()
    try:
        assert port_of(inherited.page) == port_of(ports.page)
        assert inherited == Ports(inherited.page, (), token_file, any_user=True)
    finally:
        inherited.close()
        for each in ports.page:
            each.detach()


def test_the_log_begins_anew_once_it_has_grown_large(tmp_path: Path) -> None:
    with (tmp_path / "server.log").open("a") as file:
        handler = BoundedLog(file)
        for number in range(30):
            handler.emit(logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, "x" * 100_000, None, None))
            assert file.tell() < MOST_LOG + 200_000, number
    assert (tmp_path / "server.log").stat().st_size < MOST_LOG + 200_000

"""The connections of one process: how many machines are dialled at once, and that there may be many."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fabric
import paramiko
import pytest

from orchestrator.errors import BackendError
from orchestrator.transport import pool as transport
from orchestrator.transport.address import Address
from orchestrator.transport.openssh import Resolved
from orchestrator.transport.pool import AT_ONCE, ConnectionPool, Handshake
from orchestrator.transport.rpc import Session
from tests.patience import PATIENCE
from tests.unit.transport.test_host_keys import MakeKey, line_of, make_key
from tests.unit.transport.test_host_keys_refused import AllBut, Server

__all__ = ["make_key"]  # a fixture

MANY = """
import os, resource
from types import SimpleNamespace
from orchestrator.transport.address import Address
from orchestrator.transport.pool import ConnectionPool

resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
class Pool(ConnectionPool):
    def _connect(self, address, on_answer):
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(2)]
        return SimpleNamespace(close=None, files=files)
import orchestrator.transport.rpc
orchestrator.transport.rpc.Session = lambda address, *_: SimpleNamespace(is_open=True)
pool = Pool()
print(len({id(pool.session(Address(f"n{number}"), "~")) for number in range(400)}))
"""


class Slow(ConnectionPool):
    """Machines that take their time to answer."""

    most = now = 0
    counting = threading.Lock()

    def _open(self, address: Address, workdir: str, handshake: Handshake) -> Any:
        handshake.begin()
        handshake.begin()  # a second try
        with self.counting:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.01)
        with self.counting:
            self.now -= 1
        return SimpleNamespace(is_open=True)


def test_many_machines_are_dialled_some_at_once() -> None:
    """A thousand handshakes at once would each take longer than their time-out."""
    pool, machines = Slow(), [Address(f"n{number}") for number in range(3 * AT_ONCE)]
    with ThreadPoolExecutor(len(machines)) as threads:
        sessions = list(threads.map(lambda address: pool.session(address, "~"), machines))
    assert len({id(each) for each in sessions}) == len(machines)
    assert 1 < pool.most <= AT_ONCE
    assert not pool.opening


class Dead(ConnectionPool):
    """Machines that answer at once, but for those that never do."""

    def __init__(self) -> None:
        super().__init__()
        self.gives_up = threading.Event()

    def _open(self, address: Address, workdir: str, handshake: Handshake) -> Any:
        if address.host.startswith("dead"):
            self.gives_up.wait(PATIENCE)
            raise BackendError("no answer", transient=True)
        handshake.begin()
        return SimpleNamespace(is_open=True)


def test_machines_that_do_not_answer_keep_no_other_waiting() -> None:
    pool = Dead()
    with ThreadPoolExecutor(2 * AT_ONCE) as threads:
        dead = [threads.submit(pool.session, Address(f"dead{number}"), "~") for number in range(2 * AT_ONCE - 1)]
        while len(pool.opening) < len(dead):
            time.sleep(0.001)
        for number in range(AT_ONCE + 1):
            assert threads.submit(pool.session, Address(f"n{number}"), "~").result(PATIENCE).is_open
        assert len(pool.opening) == len(dead)
        pool.gives_up.set()
    assert all(isinstance(each.exception(), BackendError) for each in dead)
    assert not pool.opening


def test_more_machines_than_files_that_a_shell_allows() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MANY], env=os.environ, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.stdout, done.stderr) == ("400\n", "")


class Shell(AllBut):
    """Runs a command on this machine, with the channel as its standard streams."""

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=_run, args=(channel, command)).start()
        return True


def _run(channel: paramiko.Channel, command: bytes) -> None:
    argv = shlex.split(command.decode())
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        back = threading.Thread(target=_pass_on, args=(program.stdout.read, channel.sendall))
        back.start()
        _pass_on(channel.recv, program.stdin.write)
        program.stdin.close()
        back.join()


def _pass_on(read: Callable[[int], bytes], write: Callable[[bytes], object]) -> None:
    with contextlib.suppress(EOFError, OSError):  # the client has closed the connection
        while data := read(1 << 16):
            write(data)


@pytest.fixture
def machine(tmp_path: Path, make_key: MakeKey, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """An SSH server on this machine, whose key is known and which takes the user's."""
    own, me, known = make_key("own"), make_key("me").with_suffix(""), tmp_path / "known_hosts"
    server = Server(own, interface=Shell)
    known.write_text(f"[127.0.0.1]:{server.port} {line_of(own)}\n")
    where = Resolved("127.0.0.1", "alice", server.port, (str(me),), (str(known),), agent=False)
    monkeypatch.setattr(transport, "resolve", lambda _: where)
    yield server
    server.close()


def test_fabric_holds_the_connection_of_a_session_and_of_a_gateway(machine: Server, tmp_path: Path) -> None:
    pool = ConnectionPool()
    session = pool.session(Address("n1"), str(tmp_path / "orch"))
    assert session is pool.session(Address("n1"), str(tmp_path / "orch"))
    assert isinstance(session, Session)
    assert session.call("hello", workdir=str(tmp_path / "orch"))[0]["host"] == socket.gethostname()
    connection = session.hang_up.__self__  # type: ignore[attr-defined]
    assert isinstance(connection, fabric.Connection)
    gateway = pool._gateway("gate")
    assert isinstance(gateway, fabric.Connection)
    assert gateway is pool._gateway("gate")
    assert (connection.is_connected, gateway.is_connected) == (True, True)
    pool.close()
    assert (connection.is_connected, gateway.is_connected, session.is_open) == (False, False, False)

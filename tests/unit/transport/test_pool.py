"""The connections of one process: how many machines are dialled at once, and that there may be many."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from orchestrator.errors import BackendError
from orchestrator.transport.address import Address
from orchestrator.transport.pool import AT_ONCE, ConnectionPool, Handshake
from tests.patience import PATIENCE

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

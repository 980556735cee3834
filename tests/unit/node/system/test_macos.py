"""The answers of psutil, which stands for /proc on macOS. psutil gives the same answers on Linux."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from orchestrator.node.system import macos, processes, tcp_peers
from tests.patience import PATIENCE


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs until its input ends."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        yield child


@pytest.fixture(autouse=True)
def on_macos(child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")


def test_a_process_is_known_by_its_start_and_a_zombie_is_none(child: subprocess.Popen[bytes]) -> None:
    found = processes.identify(child.pid)
    assert found is not None
    assert processes.is_alive(found)
    assert not processes.is_alive(processes.Process(child.pid, found.started - 1))
    assert not processes.send_signal(processes.Process(child.pid, found.started - 1), signal.SIGKILL)
    assert processes.send_signal(found, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # the child stays a zombie
    assert processes.identify(child.pid) is None


def test_a_stopped_process_is_known(child: subprocess.Popen[bytes]) -> None:
    assert not processes.is_stopped(child.pid)
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert processes.is_stopped(child.pid)
    os.kill(child.pid, signal.SIGCONT)


def test_who_still_runs_when_the_time_is_over_is_returned(child: subprocess.Popen[bytes]) -> None:
    found = processes.identify(child.pid)
    assert found is not None
    assert processes.wait_gone([found], 0.01) == [found]
    child.kill()
    assert processes.wait_gone([found], PATIENCE) == []


def test_the_owner_of_a_connection_is_this_user_or_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            assert tcp_peers.owner_of_peer(accepted) == os.geteuid()
            assert tcp_peers.is_open(accepted)
            monkeypatch.setattr(macos.os, "geteuid", lambda: 12345)
            assert not macos.is_own_peer(accepted)
            client.close()
            assert not tcp_peers.is_open(accepted)

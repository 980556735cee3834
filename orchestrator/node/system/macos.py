"""Answers, on macOS, the questions about processes and connections that the kernel's files answer on Linux.

orch runs no rank on macOS, but its commands and its supervisor run there. The package psutil is a dependency of orch on
macOS only.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable

import psutil

ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def start_of(pid: int) -> tuple[int, str] | None:
    """Return the start time of a running process in milliseconds since 1970, and the name of its program. Return None
    if the process does not exist or is a zombie.
    """
    try:
        process = psutil.Process(pid)
        return None if process.status() in ENDED else (round(process.create_time() * 1000), process.name())
    except psutil.Error:
        return None


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped a process."""
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    return False


def wait_gone(pids: Iterable[int], timeout: float) -> None:
    """Wait up to `timeout` seconds until the processes have ended. Children of this process are reaped."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            found.append(psutil.Process(pid))
    psutil.wait_procs(found, timeout)


def is_own_peer(connection: socket.socket) -> bool:
    """Return whether a process of this user holds the other end of a TCP connection within this machine.

    macOS reveals the connections of other users' processes to root only.
    """
    own, peer = connection.getsockname()[:2], connection.getpeername()[:2]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == os.geteuid() and any(
                (each.laddr, each.raddr) == (peer, own) for each in process.net_connections("tcp")
            ):
                return True
    return False

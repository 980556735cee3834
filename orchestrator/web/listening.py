"""Opens the page's port at both loopback addresses, so that no other user of this machine can listen at one of them."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import Final

from orchestrator.errors import UsageError
from orchestrator.node.system.tcp_peers import listeners

HOST: Final = "127.0.0.1"
_HOSTS: Final = ((socket.AF_INET, HOST), (socket.AF_INET6, "::1"))
_TRIES: Final = 20  # number of ports to try, because a port that is free at 127.0.0.1 may be in use at ::1
_QUEUE: Final = 2048  # if the kernel can't queue a connection, the client tries again a second later
_NO_IPV6: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
Listeners = tuple[socket.socket, ...]


class _TakenError(Exception):
    """Another process uses the port at 127.0.0.1 or at ::1."""


def listen(port: int, hint: str = "leave --port out, and a free one is taken") -> Listeners:
    """Return sockets that listen at a port of 127.0.0.1 and, if this machine has IPv6, of ::1. Port 0 means any free
    port.

    A browser may connect to either address for a name such as `x.localhost`. Raises UsageError if another process
    already listens at one of these addresses.
    """
    for left in reversed(range(_TRIES)):
        try:
            return _listen(port)
        except _TakenError as error:
            if port or not left:
                raise UsageError(str(error), hint) from error
    raise AssertionError


def port_of(listeners: Sequence[socket.socket]) -> int:
    """Return the port at which the sockets listen."""
    return int(listeners[0].getsockname()[1])


def close(listeners: Sequence[socket.socket]) -> None:
    """Close the sockets."""
    for each in listeners:
        each.close()


def _listen(port: int) -> Listeners:
    found: list[socket.socket] = []
    try:
        for family, host in _HOSTS:
            try:
                found.append(_bound(family, host, port))
            except OSError as error:
                if found and error.errno in _NO_IPV6:
                    continue
                raise _TakenError(_why(host, port, error)) from error
            port = port_of(found)
    except _TakenError:
        close(found)
        raise
    return tuple(found)


def _bound(family: int, host: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_QUEUE)
    except OSError:
        listener.close()
        raise
    return listener


def _why(host: str, port: int, error: OSError) -> str:
    users = listeners((port,), host) if error.errno == errno.EADDRINUSE else ""
    who = f": {users} listens there" if users else ""
    return f"port {port} of {host}: {error.strerror}{who}"

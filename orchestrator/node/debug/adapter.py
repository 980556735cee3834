"""`python node.pyz adapter`: debugpy's adapter for one rank, which only its own user can reach.

debugpy's own listens on a port of the machine, and whoever connects to it may run anything as its user. This one has a
name in the kernel instead, and asks the kernel whose each connection is.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from typing import Any, Callable

from orchestrator.node.system.abstract_sockets import owner_of
from orchestrator.node.system.tcp_peers import can_tell_owners, owner_of_peer
from orchestrator.protocol.files import write_json
from orchestrator.protocol.json_text import parse_json

LOOPBACK = "127.0.0.1"
PIECE = 1 << 16


def run_adapter() -> int:
    """Serve the rank that has given its order on the standard input, until that is gone.

    The answer on the standard output is the port at which the rank is to connect. The order's `announce` is the file
    that says by which name clients come; `users` are those from whom connections are taken.
    """
    order = parse_json(sys.stdin.readline())
    sys.path.append(order["path"])
    from debugpy import adapter  # noqa: PLC0415 (it is the rank's own, found by the path)
    from debugpy.adapter import clients, servers, sessions  # noqa: PLC0415

    users = (os.geteuid(), order["user"])
    adapter.access_token = order["token"]
    servers.listener = socket.create_server((LOOPBACK, 0))
    name = f"orch-debugger/{order['name']}/{os.urandom(8).hex()}"
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.bind(f"\0{name}")
    door.listen()
    clients.listener = None  # a port, which there is none of
    has_come = threading.Event()

    def take_rank(came: socket.socket) -> None:
        servers.Connection(came)  # which asks for the token
        if servers.connections():
            has_come.set()

    tells = can_tell_owners()  # else the token has to do
    _serve(servers.listener, lambda came: not tells or owner_of_peer(came) in users, take_rank)
    print(servers.listener.getsockname()[1], flush=True)
    has_come.wait()
    _serve(door, lambda came: owner_of(came) in users, lambda came: clients.Client(_lasting(came)))
    write_json(order["announce"], {"socket": name, "folder": os.getcwd()}, durable=False)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what it says of every client that goes is not the rank's output
    servers.wait_until_disconnected()
    sessions.wait_until_ended()
    return 0


def _lasting(came: socket.socket) -> socket.socket:
    """Return what debugpy is to take for the client's connection: it can be written to until debugpy closes it.

    debugpy ends, and leaves its rank alone, where a client is gone before it has its answer.
    """
    ours, debugpys = socket.socketpair()
    for ends in ((came, ours), (ours, came)):
        threading.Thread(target=_copy, args=ends, daemon=True).start()
    return debugpys


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until the source ends; what the target takes no more is dropped."""
    with contextlib.suppress(OSError):
        is_taken = True
        while data := source.recv(PIECE):
            try:
                if is_taken:
                    target.sendall(data)
            except OSError:
                is_taken = False
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _serve(listening: socket.socket, is_taken: Callable[[socket.socket], bool], handle: Callable[[Any], Any]) -> None:
    def accept() -> None:
        while True:
            came, _ = listening.accept()
            try:
                if is_taken(came):
                    handle(came)
                    continue
            except OSError:  # it went again before it was greeted; the next one is served all the same
                pass
            came.close()

    threading.Thread(target=accept, daemon=True).start()

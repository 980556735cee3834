"""The program `python node.pyz adapter`: debugpy's adapter for one rank. Only the run's user can connect to it.

debugpy's own adapter listens on a port, and any user who connects to the port can run code as the adapter's owner. This
adapter listens on an abstract socket instead, and the kernel reports the user at the other end of each connection.
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
    """Serve a rank until the rank ends. The rank writes an order to this program's stdin, and reads from its stdout the
    port to which the rank must connect.

    The adapter writes the name of the debuggers' socket into the file that the order names as `announce`. Only the
    order's `user` and the user of this process may connect to that socket.
    """
    order = parse_json(sys.stdin.readline())
    sys.path.append(order["path"])
    from debugpy import adapter
    from debugpy.adapter import clients, servers, sessions

    users = (os.geteuid(), order["user"])
    adapter.access_token = order["token"]
    servers.listener = socket.create_server((LOOPBACK, 0))
    name = f"orch-debugger/{order['name']}/{os.urandom(8).hex()}"
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.bind(f"\0{name}")
    door.listen()
    clients.listener = None  # debuggers connect to `door` and not to a port
    has_come = threading.Event()

    def take_rank(came: socket.socket) -> None:
        servers.Connection(came)  # this verifies the token
        if servers.connections():
            has_come.set()

    knows_owners = can_tell_owners()  # otherwise only the token protects the port
    _serve(servers.listener, lambda came: not knows_owners or owner_of_peer(came) in users, take_rank)
    print(servers.listener.getsockname()[1], flush=True)
    has_come.wait()
    _serve(door, lambda came: owner_of(came) in users, lambda came: clients.Client(_lasting(came)))
    write_json(order["announce"], {"socket": name, "folder": os.getcwd()}, durable=False)
    # Stderr is the rank's log. debugpy's messages about debuggers that disconnect do not belong there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    servers.wait_until_disconnected()
    sessions.wait_until_ended()
    return 0


def _lasting(came: socket.socket) -> socket.socket:
    """Return a socket that debugpy uses instead of a debugger's connection. The socket stays writable until debugpy
    closes it.

    A debugger may disconnect before debugpy has sent its answer. If debugpy then failed to send the answer, debugpy
    would end and abandon the rank.
    """
    ours, debugpys = socket.socketpair()
    for ends in ((came, ours), (ours, came)):
        threading.Thread(target=_copy, args=ends, daemon=True).start()
    return debugpys


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy data until the source ends. If the target is closed, drop the data."""
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
            except OSError:  # this client has disconnected already; continue with the next one
                pass
            came.close()

    threading.Thread(target=accept, daemon=True).start()

"""Can this machine be reached from that one? One listens on a port of the gang's, the others probe it."""

from __future__ import annotations

import contextlib
import socket
import threading

from orchestrator.node.server.request import Answer, RefusedError, Request
from orchestrator.node.system import sockets
from orchestrator.node.system.host import listening_addresses, network_environment

PROBE_SECONDS = 3.0
GREETING = b"orch listens\n"


def listen(request: Request, _: bytes) -> Answer:
    """Listen where node 0's agent would, on the first free port, until this server ends; return the port."""
    addrs = listening_addresses(tuple(request["addrs"]), request["interface"])
    try:
        socks = sockets.listen(addrs, tuple(request["ports"]))
    except OSError as error:
        raise RefusedError(str(error)) from error
    for sock in socks:
        threading.Thread(target=_greet, args=(sock,), daemon=True).start()
    return {"port": sockets.port_of(socks)}, b""


def _greet(sock: socket.socket) -> None:
    while True:
        peer, _ = sock.accept()
        with peer, contextlib.suppress(OSError):
            peer.sendall(GREETING)


def probe(request: Request, _: bytes) -> Answer:
    """Return the first address at which the listener answers, and the interface towards it; else each one's problem."""
    problems = []
    for addr in request["addrs"]:
        try:
            with socket.create_connection((addr, request["port"]), timeout=PROBE_SECONDS) as peer:
                if peer.makefile("rb").readline() == GREETING:
                    names = network_environment(addr, None)
                    return {
                        "addr": addr,
                        "own": peer.getsockname()[0],
                        "interface": names.get("GLOO_SOCKET_IFNAME"),
                    }, b""
            problems.append(f"{addr}: something else answers there")
        except OSError as error:
            problems.append(f"{addr}: {'timed out' if isinstance(error, TimeoutError) else error.strerror or error}")
    return {"addr": None, "problems": problems}, b""

"""Can this machine be reached from that one? One opens a door on the gang's ports, the others knock."""

from __future__ import annotations

import contextlib
import socket
import threading

from orchestrator.node.preflight import network_environment
from orchestrator.node.request import Answer, RefusedError, Request

SECONDS = 3.0
WORD = b"orch's door\n"


def door(request: Request, _: bytes) -> Answer:
    """Listen on the first free one of the ports, as node 0's agent would; the port. It is shut with this server."""
    from orchestrator.node.gang import listen  # noqa: PLC0415 (loads asyncio)

    try:
        sock = listen(tuple(request["ports"]), only_loopback=False)
    except OSError as error:
        raise RefusedError(str(error)) from error
    threading.Thread(target=_greet, args=(sock,), daemon=True).start()
    return {"port": sock.getsockname()[1]}, b""


def _greet(sock: socket.socket) -> None:
    while True:
        peer, _ = sock.accept()
        with peer, contextlib.suppress(OSError):
            peer.sendall(WORD)


def knock(request: Request, _: bytes) -> Answer:
    """The first address at which the door answers and the interface towards it; what went wrong at each otherwise."""
    problems = []
    for addr in request["addrs"]:
        try:
            with socket.create_connection((addr, request["port"]), timeout=SECONDS) as peer:
                if peer.makefile("rb").readline() == WORD:
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

"""Tests whether machines reach one another: one machine listens on a port of the gang, and the others connect to it."""

from __future__ import annotations

import contextlib
import socket
import threading

from orchestrator.node.server.request import Answer, RefusedError, Request
from orchestrator.node.system import sockets
from orchestrator.node.system.host import listening_addresses, network_environment
from orchestrator.node.system.sockets import PADDING, padding_lost

PROBE_SECONDS = 3.0  # the time-out in seconds for each step of a probe
LISTEN_SECONDS = 15.0  # after this many seconds without a probe, the listener ends
MOST_AT_ONCE = 64
GREETING = b"orch listens\n"


def listen(request: Request, _: bytes) -> Answer:
    """Listen as node 0's agent would, on the first free port, and return the port. Stop after LISTEN_SECONDS without
    a connection.
    """
    addrs = listening_addresses(tuple(request["addrs"]), request["interface"])
    try:
        socks = sockets.listen(addrs, tuple(request["ports"]))
    except OSError as error:
        raise RefusedError(str(error)) from error
    for sock in socks:
        threading.Thread(target=_answer_all, args=(sock,), daemon=True).start()
    return {"port": sockets.port_of(socks)}, b""


def _answer_all(sock: socket.socket) -> None:
    free = threading.BoundedSemaphore(MOST_AT_ONCE)
    sock.settimeout(LISTEN_SECONDS)
    with sock, contextlib.suppress(OSError):  # no peer has connected in time
        while True:
            peer, _ = sock.accept()
            free.acquire()
            threading.Thread(target=_answer, args=(peer, free), daemon=True).start()


def _answer(peer: socket.socket, free: threading.BoundedSemaphore) -> None:
    """Send the greeting to the peer, and send the peer's 64 KiB of test data (the padding) back. The peer then knows
    that large packets arrive.
    """
    with peer, contextlib.suppress(OSError):
        peer.settimeout(PROBE_SECONDS)
        peer.sendall(GREETING)
        if len(_received(peer, len(PADDING))) == len(PADDING):
            peer.sendall(PADDING.encode())
    free.release()


def _received(peer: socket.socket, count: int) -> bytes:
    """Read `count` bytes from the peer. Return fewer bytes if the peer closes the connection."""
    data = b""
    while len(data) < count and (more := peer.recv(count - len(data))):
        data += more
    return data


def probe(request: Request, _: bytes) -> Answer:
    """Return the first address at which the listener answers, and the interface that leads to this address. If no
    address answers, return the problem of each address.
    """
    problems = []
    for addr in request["addrs"]:
        try:
            with socket.create_connection((addr, request["port"]), timeout=PROBE_SECONDS) as peer:
                if _received(peer, len(GREETING)) != GREETING:
                    problems.append(f"{addr}: something else answers there")
                elif problem := _padding_problem(peer):
                    problems.append(f"{addr}: {problem}")
                else:
                    interface = network_environment(addr, None).get("GLOO_SOCKET_IFNAME")
                    return {"addr": addr, "own": peer.getsockname()[0], "interface": interface}, b""
        except OSError as error:
            problems.append(f"{addr}: {_in_words(error)}")
    return {"addr": None, "problems": problems}, b""


def _padding_problem(peer: socket.socket) -> str:
    """Send 64 KiB of test data (the padding) to the listener, which sends the data back. Return "" if the data arrives
    in both directions, or else the reason, such as a wrong MTU.
    """
    try:
        peer.sendall(PADDING.encode())
        is_whole = len(_received(peer, len(PADDING))) == len(PADDING)
        return "" if is_whole else padding_lost("the connection was closed")
    except OSError as error:
        return padding_lost(_in_words(error))


def _in_words(error: OSError) -> str:
    return "timed out" if isinstance(error, TimeoutError) else error.strerror or str(error)

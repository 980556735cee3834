"""Opens listening sockets, only at the addresses that other processes must reach."""

from __future__ import annotations

import errno
import socket

from orchestrator.node.system.tcp_peers import listeners

ANYWHERE = ""  # all addresses of this machine
ANY_PORT = (0,) * 8  # port 0, tried several times, because a port that is free at one address may be taken at another
BACKLOG = 4096
PADDING = "." * (64 << 10)  # sent in both directions, because small packets alone would not show a wrong MTU on the way


def listen(addrs: tuple[str, ...], ports: tuple[int, ...]) -> list[socket.socket]:
    """Return listening sockets, one at each address. All use the same port: the first of the ports that is free at
    every address.

    Raises OSError if there is no such port. The message names the users who occupy the ports, or another reason.
    """
    other = None
    for port in ports:
        socks: list[socket.socket] = []
        try:
            for addr in addrs:
                socks.append(_listening(addr, port_of(socks) or port))
            return socks
        except OSError as error:
            for sock in socks:
                sock.close()
            problem = error
            if error.errno != errno.EADDRINUSE:
                other = error
    if not any(ports) or other is not None:
        why = (other or problem).strerror or str(other or problem)
        raise OSError(f"no port can be opened at {', '.join(addrs) or 'any address'}: {why}")
    by = f", by {users}" if (users := listeners(ports)) else ""
    raise OSError(f"all of the agents' rendezvous ports are taken{by}: {', '.join(map(str, ports))}")


def reserve(addr: str) -> socket.socket:
    """Return a socket that is bound to a free port at this address and does not listen. The kernel gives the port to no
    other program, but a program that sets SO_REUSEADDR, as torch does, can listen there. Raises OSError if there is no
    free port.
    """
    family, is_dual = _family(addr)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_dual)
        sock.bind((addr, 0))
    except OSError as error:
        sock.close()
        raise OSError(f"no port can be opened at {addr or 'any address'}: {error.strerror or error}") from error
    return sock


def port_of(socks: list[socket.socket]) -> int:
    """Return the port that all sockets share, or 0 if there are no sockets."""
    return int(socks[0].getsockname()[1]) if socks else 0


def padding_lost(why: str) -> str:
    """Return the error message for a connection that carries small packets but loses large ones. `why` is the
    socket's error.
    """
    lost = f"{len(PADDING) >> 10} KiB that were sent there did not come back"
    return f"it can be reached, but {lost}: {why}; is the MTU smaller on the way?"


def _listening(addr: str, port: int) -> socket.socket:
    family, is_dual = _family(addr)
    return socket.create_server((addr, port), family=family, backlog=BACKLOG, dualstack_ipv6=is_dual)


def _family(addr: str) -> tuple[socket.AddressFamily, bool]:
    """Return the family of an address, and whether a socket there also accepts connections of IPv4."""
    is_dual = addr == ANYWHERE and socket.has_dualstack_ipv6()
    return socket.AF_INET6 if is_dual or ":" in addr else socket.AF_INET, is_dual

"""The listening socket of a gang, on the first free of its ports."""

from __future__ import annotations

import socket


def listen(ports: tuple[int, ...], *, only_loopback: bool) -> socket.socket:
    """Open a listening socket on the first of the ports that is free; OSError when none is."""
    dual = socket.has_dualstack_ipv6() and not only_loopback
    family = socket.AF_INET6 if dual else socket.AF_INET
    for port in ports:
        try:
            return socket.create_server(
                ("127.0.0.1" if only_loopback else "", port), family=family, backlog=1024, dualstack_ipv6=dual
            )
        except OSError:
            continue
    raise OSError(f"all of the gang's ports are taken: {', '.join(map(str, ports))}")

"""Asks the kernel which user owns the other end of a local TCP connection, and which user listens on a port."""

from __future__ import annotations

import os
import socket
import struct
import sys

from orchestrator.node.system.kernel_files import read_text
from orchestrator.node.system.private import user_name

REQUEST = 1  # NLM_F_REQUEST, for only one socket
ANY_COOKIE = 0xFFFFFFFF
QUESTION, ENDS = "=BBBBI", "=HH16s16sIII"  # sock_diag(7): inet_diag_req_v2, and the inet_diag_sockid in it
UID_AND_INODE = struct.calcsize("=BBBB") + struct.calcsize(ENDS) + struct.calcsize("=III")
ESTABLISHED_STATES = 0xFFF
LISTENING = "0A"  # the state of a listening socket in /proc/net/tcp
MOST_NAMED = 3  # the most users that are named
ESTABLISHED = 1  # the state of an open connection, tcp_states.h


def owner_of_peer(connection: socket.socket) -> int | None:
    """Return the uid of the user at the other end of a connection within this machine, or None if the uid is unknown.

    The uid is unknown if the other program has closed its socket, if the socket is in another network namespace, or if
    the kernel does not answer such requests.
    """
    try:
        if sys.platform == "darwin":
            from orchestrator.node.system import macos

            return os.geteuid() if macos.is_own_peer(connection) else None
        own, peer = connection.getsockname(), connection.getpeername()
        return _owner(connection.family, peer[:2], own[:2])
    except OSError:
        return None


def listeners(
    ports: tuple[int, ...], host: str = "", tables: tuple[str, ...] = ("/proc/net/tcp", "/proc/net/tcp6")
) -> str:
    """Return a text that names the users who listen on any of these ports; "" if the kernel reports none.

    `host` is an IP address. If it is given, only users who listen at this address or at all addresses are named.
    """
    wanted, uids = {f"{port:04X}" for port in ports}, set()
    for table in tables:
        for row in read_text(table).splitlines():
            _, local, _, state, _, _, _, uid, *_ = row.split()
            address, _, port = local.rpartition(":")
            if state == LISTENING and port in wanted and (not host or _address(address) in (host, "0.0.0.0", "::")):  # noqa: S104 (nothing is bound)
                uids.add(int(uid))
    words = [f"{user_name(uid) or 'a user'} (uid {uid})" for uid in sorted(uids)]
    more = [f"{len(words) - MOST_NAMED} other users"] if len(words) > MOST_NAMED else []
    return ", ".join([*words[:MOST_NAMED], *more])


def _address(text: str) -> str:
    """Parse an IP address from /proc/net/tcp, which writes addresses as 32-bit words in the machine's byte order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    return socket.inet_ntop(
        socket.AF_INET if len(words) == 1 else socket.AF_INET6, struct.pack(f"={len(words)}I", *words)
    )


def is_open(connection: socket.socket) -> bool:
    """Return whether both ends of the connection are still open."""
    if sys.platform == "darwin":
        try:
            return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == ESTABLISHED


def can_tell_owners() -> bool:
    """Return whether this machine's kernel reports the owners of connections. A connection is opened to test this."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        connection, _ = server.accept()
        with connection:
            return owner_of_peer(connection) == os.geteuid()


def _owner(family: int, here: tuple[str, int], there: tuple[str, int]) -> int | None:
    from orchestrator.node.system.abstract_sockets import ask_kernel

    ends = struct.pack(
        ENDS, socket.htons(here[1]), socket.htons(there[1]), _packed(family, here[0]), _packed(family, there[0]),
        0, ANY_COOKIE, ANY_COOKIE,
    )  # fmt: skip
    question = struct.pack(QUESTION, family, socket.IPPROTO_TCP, 0, 0, ESTABLISHED_STATES) + ends
    answer = next(ask_kernel(question, REQUEST))
    if len(answer) < UID_AND_INODE + 8:
        return None
    uid, inode = struct.unpack_from("=II", answer, UID_AND_INODE)
    return uid if inode else None  # a socket without an inode is closed, and the kernel reports root as its owner


def _packed(family: int, address: str) -> bytes:
    return socket.inet_pton(family, address.partition("%")[0])

"""Abstract unix sockets. Each has a name in the kernel, which only one process of a machine can hold at a time.

They are not files, so no link is followed and no file is left behind. A name is free as soon as its last descriptor is
closed. The kernel knows the owner of each name. Each network namespace has its own names.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

from orchestrator.node.system.kernel_files import read_text

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
REQUEST_ALL = 0x301  # NLM_F_REQUEST and NLM_F_DUMP
ERROR, DONE = 2, 3  # message types of answers
SHOW_NAME_AND_UID = 0x41
NAME, UID = 0, 7  # attribute types
ANSWER_SECONDS = 5.0
HEAD, DIAG, ATTRIBUTE = "=IHHII", "=BBHIIIII", "=HH"
DIAG_ANSWER_BYTES = 16


class Owned(NamedTuple):
    """A name that a process holds, and the uid of the process's user. On kernels before 5.3 the uid is None."""

    name: str
    uid: int | None


def take(name: str) -> socket.socket | None:
    """Return a socket that holds the name until the socket and all copies of its descriptor are closed.

    Return None if another process holds the name.
    """
    taken = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        taken.bind(f"\0{name}")
    except OSError:
        taken.close()
        return None
    return taken


def owner_of(connection: socket.socket) -> int:
    """Return the uid of the process at the other end of a unix socket, as the kernel reports it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("=iII"))
    return int(struct.unpack("=iII", credentials)[1])


def owned_names() -> list[Owned]:
    """Return all names that are held in this network namespace, with their owners according to the kernel."""
    try:
        question = struct.pack(DIAG, socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, SHOW_NAME_AND_UID, 0, 0)
        return [owned for body in ask_kernel(question, REQUEST_ALL) if (owned := _owned(body)) is not None]
    except OSError:  # the kernel does not support the request, or refuses it
        return [Owned(name, None) for name in _listed()]


def ask_kernel(question: bytes, flags: int) -> Iterator[bytes]:
    """Yield the kernel's answer about each socket that the question selects. sock_diag(7) describes both. Raises
    OSError if the kernel refuses the question.
    """
    head = struct.pack(HEAD, struct.calcsize(HEAD) + len(question), SOCK_DIAG_BY_FAMILY, flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(ANSWER_SECONDS)
        kernel.send(head + question)
        while True:
            data = kernel.recv(1 << 16)
            while data:
                size, kind, *_ = struct.unpack_from(HEAD, data)
                if kind == DONE:
                    return
                if kind == ERROR:
                    raise OSError(-struct.unpack_from("=i", data, struct.calcsize(HEAD))[0], "sock_diag")
                yield data[struct.calcsize(HEAD) : size]
                data = data[_aligned(size) :]


def _owned(body: bytes) -> Owned | None:
    """Return the abstract name in the kernel's answer. Return None if the answer is not about a named stream socket.

    Sockets of other types have a separate set of names.
    """
    attributes: dict[int, bytes] = {}
    rest = body[DIAG_ANSWER_BYTES:]
    while len(rest) >= struct.calcsize(ATTRIBUTE):
        size, kind = struct.unpack_from(ATTRIBUTE, rest)
        attributes[kind] = rest[struct.calcsize(ATTRIBUTE) : size]
        rest = rest[max(_aligned(size), struct.calcsize(ATTRIBUTE)) :]
    name = attributes.get(NAME, b"")
    if body[1] != socket.SOCK_STREAM or not name.startswith(b"\0"):
        return None
    return Owned(os.fsdecode(name[1:]), struct.unpack("=I", attributes[UID])[0] if UID in attributes else None)


def _aligned(size: int) -> int:
    return (size + 3) & ~3


def _listed() -> Iterator[str]:
    for line in read_text("/proc/net/unix").split("\n"):
        fields = line.split(None, 7)
        if len(fields) == 8 and fields[4] == "0001" and fields[7].startswith("@"):
            yield fields[7][1:]

"""Forwards a local port to a port on a node of a run."""

from __future__ import annotations

from collections.abc import Callable
from socket import socket

from orchestrator.errors import UsageError
from orchestrator.operations.debugging.on_node import check_going_on, node_command
from orchestrator.operations.debugging.shell import host_of
from orchestrator.runs.store import RunDir
from orchestrator.transport.forwarding import Forwarding, listen_here


def parse_port(text: str) -> tuple[int, int]:
    """Return the port and the node in a text such as `8888` or `8888:1`. Raises UsageError if the text is not valid."""
    port, colon, node = text.partition(":")
    numbers = (port, node) if colon else (port, "0")
    if not all(each.isascii() and each.isdigit() for each in numbers) or not 0 < int(port) < 1 << 16:
        raise UsageError(
            f"'{text}' is not a port",
            "write a port from 1 to 65535; for a node other than 0, add its number, as in 8888:1",
        )
    return int(port), int(numbers[1])


def forward(
    run: RunDir, port: int, node: int, say: Callable[[str], None], *, here: int = 0, any_user: bool = False
) -> Forwarding:
    """Return a context manager that forwards connections from a local port to a port of a node.

    `here` is the local port, or 0 for any free port. Raises UsageError if the run has ended or has no such node, or if
    the local port is taken.
    """
    check_going_on(run)
    host_of(run, node)
    return forward_to(run, node, f"port:{port}", say, listen_here(here, any_user=any_user), any_user=any_user)


def forward_to(
    run: RunDir, node: int, target: str, say: Callable[[str], None], listening: socket, *, any_user: bool
) -> Forwarding:
    """Return a context manager that forwards connections from a listening socket to a node's port, such as `port:8888`,
    or to a rank's debugger, such as `rank:3`.
    """
    return Forwarding(
        lambda boundary: node_command(run, node, "relay", str(node), boundary, target), say, listening,
        any_user=any_user,
    )  # fmt: skip

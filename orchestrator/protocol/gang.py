"""What the agents of a run know of each other before they talk (ports), and say first (Hello). Python 3.9, pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

GANG_PORT_COUNT = 16
# Below Linux' ephemeral range, so that no client socket sits on one by chance.
GANG_PORT_RANGE = (15_000, 32_767)


@dataclass(frozen=True)
class Hello:
    """What a node says of itself when it joins."""

    node_rank: int
    host: str
    nproc: int
    addrs: tuple[str, ...] = ()  # where its neighbour server listens
    neighbour_port: int = 0


def gang_ports(secret: str, port_range: tuple[int, int] = GANG_PORT_RANGE) -> tuple[int, ...]:
    """Return up to 16 distinct ports of the range: all who know the secret derive the same, and nobody else can."""
    low, high = port_range
    span, counter = high - low + 1, 0
    ports: list[int] = []
    while len(ports) < min(GANG_PORT_COUNT, span):
        digest = hashlib.sha256(f"ports/{counter}/{secret}".encode()).digest()
        port = low + int.from_bytes(digest[:8], "big") % span
        if port not in ports:
            ports.append(port)
        counter += 1
    return tuple(ports)

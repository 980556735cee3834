"""The ports on which a run's agents can connect to their leader, and the first message of a connection (Hello).

The agents derive the ports from a shared secret before they connect.
"""

import hashlib

from orchestrator.protocol.typed import Fields, Node, Port

GANG_PORT_COUNT = 16
# Below Linux's ephemeral range, so that no client socket uses one by chance.
GANG_PORT_RANGE = (15_000, 32_767)


class Hello(Fields):
    """A node's description of itself, which it sends when it connects to the leader."""

    node_rank: Node
    host: str
    nproc: int
    addrs: tuple[str, ...] = ()  # the addresses at which its neighbour server listens
    neighbour_port: Port = 0


def gang_ports(secret: str, port_range: tuple[int, int] = GANG_PORT_RANGE) -> tuple[int, ...]:
    """Return up to 16 distinct ports of the range `port_range`. They are computed from the run's secret, so only the
    run's agents know them.
    """
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

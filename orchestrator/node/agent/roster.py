"""The nodes of a gang, as their hello messages describe them: their hosts, addresses and numbers of ranks. The module
does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.protocol.gang import Hello
from orchestrator.protocol.hostlist import nodes_in_words
from orchestrator.protocol.messages import Check
from orchestrator.protocol.ranks import Binding, bind
from orchestrator.protocol.task import NodeTask


class Roster:
    """The hello messages of the nodes that have joined the gang."""

    def __init__(self, task: NodeTask) -> None:
        self.task = task
        self.hellos: dict[int, Hello] = {}
        self.reached_at: dict[int, str] = {}  # the address at which each other node has reached node 0
        self.folders_lost: dict[int, str] = {}  # the run's folder, on each node that lost it

    def add(self, hello: Hello, reached_at: str) -> None:
        """Add a node, and the address at which this node has reached node 0."""
        self.hellos[hello.node_rank] = hello
        if hello.node_rank:
            self.reached_at[hello.node_rank] = reached_at

    @property
    def nodes(self) -> set[int]:
        """Return the nodes that have joined."""
        return set(self.hellos)

    def names(self, nodes: list[int]) -> str:
        """Return a text that lists the nodes with their hosts."""
        return nodes_in_words([(node, self.host_of(node)) for node in nodes])

    def host_of(self, node: int) -> str:
        """Return the node's host name. If the node has not joined yet, return the host name in the plan."""
        return self.hellos[node].host if node in self.hellos else self.task.hosts[node]

    def how_folders_were_lost(self) -> str:
        """Return a sentence about the nodes on which the run's folder was removed; "" if there are none."""
        if not (nodes := sorted(self.folders_lost)):
            return ""
        return f"{self.names(nodes)} lost the run's folder: {self.folders_lost[nodes[0]]} was removed during the run"

    def check_for(self, node: int) -> Check:
        """Return the order that makes a node test its network connection to the next node."""
        neighbour = self.hellos[(node + 1) % self.task.nnodes]
        return Check(neighbour.addrs, neighbour.neighbour_port, neighbour.host)

    def servers(self, nodes: Iterable[int]) -> tuple[tuple[int, tuple[str, ...], int], ...]:
        """Return the addresses and the port of each node's neighbour server, which receives checkpoints."""
        return tuple((node, self.hellos[node].addrs, self.hellos[node].neighbour_port) for node in nodes)

    def bindings(self) -> list[Binding]:
        """Return the rank numbers of each node."""
        return bind([self.hellos[node].nproc for node in range(self.task.nnodes)])

    @property
    def world(self) -> range:
        """Return the numbers of all ranks of the gang."""
        return range(sum(hello.nproc for hello in self.hellos.values()))

    def store_addr(self) -> str:
        """Return node 0's address if all other nodes have used the same address to reach it. Otherwise return "", so
        that the store listens on all addresses.
        """
        if self.task.nnodes == 1:
            return "127.0.0.1"
        found = set(self.reached_at.values())
        return found.pop() if len(found) == 1 else ""

    def master_addr(self, node: int) -> str:
        """Return the address at which a node's ranks reach node 0. For other nodes, this is the address that the node's
        agent has used. For node 0's own ranks, it is the address that another node has used.
        """
        return self.reached_at.get(node) or self.store_addr() or next(iter(self.reached_at.values()))

"""The figures of docs/scale.md: `python -m tests.simulator 500 1000 2000 4000`. All are counted; none is a time."""

from __future__ import annotations

import json
import sys
import tempfile
import tracemalloc
from pathlib import Path

from orchestrator.node.system.sockets import PADDING
from orchestrator.protocol.task import task_json
from tests.simulator.gang import Gang
from tests.simulator.network import Weather
from tests.simulator.stories import all_goes_well, told
from tests.unit.node.agent.test_leader import FINE
from tests.unit.node.agent.test_leader import Gang as LeaderAlone
from tests.unit.specs.test_plan import planned as plan_of
from tests.unit.specs.test_plan import profile

NPROC = 8


def row(what: str, count: float, nodes: int) -> None:
    """Print one figure, and what it is for each node."""
    print(f"| {what} | {count:,.0f} | {count / nodes:,.1f} |")


def planned(nodes: int) -> None:
    """Print the sizes of a plan, and of what is sent of it."""
    hosts = [
        f"node-{number * 2654435761 % (1 << 32):08x}" for number in range(nodes)
    ]  # as of a cloud: not to be folded
    made = plan_of(None, profile("ssh", hosts=hosts, nproc_per_node=NPROC))
    row("plan.json, bytes", len(json.dumps(made.to_json())), nodes)
    row("all nodes' tasks, bytes", sum(len(task_json(task)) for task in made.tasks), nodes)


def told_of(gang: Gang) -> None:
    """Print what node 0 has sent, heard, recorded and held."""
    node_0, nodes = gang.machines[0], gang.nodes
    sent, heard = (sum(count.values()) - count["heartbeat"] for count in (node_0.sent, node_0.heard))
    seconds = gang.at("gang_ended") - gang.at("listening")
    row("messages that node 0 sends, hello to bye", sent, nodes)
    row("messages that node 0 receives, hello to bye", heard, nodes)
    row("bytes that node 0 sends and receives, with heartbeats, without its two probes of 64 KiB",
        node_0.sent_bytes + node_0.heard_bytes - 4 * len(PADDING), nodes)  # fmt: skip
    row("heartbeats that node 0 sends per second", node_0.sent["heartbeat"] / seconds, nodes)
    row("heartbeats that node 0 receives per second", node_0.heard["heartbeat"] / seconds, nodes)
    row("connections that node 0 has open at once", node_0.most_ends, nodes)
    row("events that node 0 records", len(gang.events(0)), nodes)
    log = gang.agents[0].events
    row("bytes of the events that node 0 records", log.bytes, nodes)  # type: ignore[attr-defined]
    other = gang.agents[nodes - 1].events
    row("bytes of the events of all other nodes", other.bytes * (nodes - 1), nodes)  # type: ignore[attr-defined]


def led(nodes: int) -> None:
    """Print the memory of the leader's own state, from the first hello to the last rank's exit."""
    tracemalloc.start()
    gang = LeaderAlone(nodes)
    gang.sent, gang.events = Nowhere(), Nowhere()
    gang.leader.send, gang.leader.record = (lambda *_: None), (lambda *_, **__: None)
    gang.join(*range(nodes), nproc=NPROC)
    gang.everyone("path", error=None)
    gang.everyone("ready", attempt=0, port=4242)
    for rank in range(nodes * NPROC):
        gang.exit(rank, dict(FINE), NPROC)
    row("bytes of the leader's state when all ranks have ended", tracemalloc.get_traced_memory()[0], nodes)
    tracemalloc.stop()


class Nowhere(list):  # type: ignore[type-arg]
    """A list that keeps nothing."""

    def append(self, _: object) -> None:
        """Forget it."""


def main() -> None:
    """Print a table for each number of nodes."""
    for nodes in map(int, sys.argv[1:]):
        print(f"\n| {nodes:,} nodes, {NPROC} ranks each | in all | a node |\n|---|---|---|")
        planned(nodes)
        with tempfile.TemporaryDirectory() as folder:
            told_of(told(all_goes_well, Path(folder), nodes, "figures", nproc=NPROC, weather=Weather(stragglers=0.0)))
        led(nodes)


if __name__ == "__main__":
    main()

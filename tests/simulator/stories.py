"""What may happen to a gang, and what must hold whatever happens: stories of any number of nodes, by any seed."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from orchestrator.node.agent.leader import FAILURE_GRACE, SETTLE_SECONDS
from orchestrator.node.agent.leader_service import CLOSE_PATIENCE, LINGER_SECONDS, TICK_SECONDS
from orchestrator.node.agent.presence import HEARTBEAT_SECONDS
from orchestrator.protocol.gang import GANG_PORT_COUNT
from orchestrator.protocol.layout import lost_file
from tests.simulator.gang import KILLED, OWN, Gang
from tests.simulator.network import Weather

LINK_SECONDS = 10.0  # NodeTask's own
NETWORK_SECONDS = 8.0  # for a message and its answer, with packets lost several times in a row
TOLD_SECONDS = NETWORK_SECONDS  # from the gang's end until everybody has left
KNOWN_SECONDS = LINK_SECONDS + 2 * HEARTBEAT_SECONDS + TICK_SECONDS + SETTLE_SECONDS + FAILURE_GRACE + NETWORK_SECONDS
"""From a loss of nodes until all of them are known."""

STORM = Weather(jitter=0.02, loss=0.03, stragglers=0.2, slowness=100.0)
Story = Callable[[Gang], Awaitable[None]]


def must_hold(gang: Gang) -> None:
    """Check what holds of every gang, however it has ended: each node is told all there is, once and in time."""
    attempts = [event["attempt"] for event in gang.events(0, "go")]
    assert attempts == list(range(len(attempts)))
    for node in (node for node in gang.live if gang.events(node, "reached_leader")):
        started = Counter(event["attempt"] for event in gang.events(node, "started"))
        assert set(started) == set(attempts), f"node {node} was told of attempts {started}, and there were {attempts}"
        assert set(started.values()) <= {1}, f"node {node} was told more than once to go: {started}"
        (last,) = gang.events(node, "agent_ended")
        assert last["outcome"] == gang.end["outcome"], f"node {node} left otherwise than the gang: {last}"
        late = gang.ended[node] - gang.at("gang_ended")
        most = TOLD_SECONDS + (0 if node else LINGER_SECONDS + CLOSE_PATIENCE)
        assert late <= most, f"node {node} left {late:.1f} s after the end"
    for attempt in attempts:
        offsets = sorted(
            each["ranks"][0]
            for node in range(gang.nodes)
            if node in gang.agents
            for each in gang.events(node, "started")
            if each["attempt"] == attempt
        )
        assert len(set(offsets)) == len(offsets)
    joined = Counter(event["joined"] for event in gang.events(0, "joined"))
    assert set(joined.values()) <= {1}


def lost(gang: Gang) -> set[int]:
    """Return the nodes that node 0 counts as lost."""
    return {event["lost"] for event in gang.events(0, "lost_node")}


# -- how a gang comes together


async def all_goes_well(gang: Gang) -> None:
    """All join, run and end."""
    await gang.until("go")
    await asyncio.sleep(1)
    gang.finish()
    await gang.until("gang_ended", outcome="succeeded")


async def node_0_comes_last(gang: Gang) -> None:
    """Everybody has dialled for long when node 0 begins to listen, and comes at once."""
    last = gang.machines[0].start_after = 20.0 + max(machine.start_after for machine in gang.machines)
    await gang.until("go")
    slowest = max(machine.start_after + machine.import_seconds for machine in gang.machines)
    assert gang.at("go") - gang.began <= slowest + 3 * NETWORK_SECONDS + 0.01 * gang.nodes
    assert max(machine.dials for machine in gang.machines[1:]) <= GANG_PORT_COUNT * (
        last + 12
    )  # a pause of a second, and shorter ones at first
    gang.finish()
    await gang.until("gang_ended", outcome="succeeded")


async def a_node_is_slow(gang: Gang) -> None:
    """One starts late, and another one's launcher takes long: all wait for them, and nobody is lost."""
    late, slow = gang.chance.sample(range(gang.nodes), 2)
    gang.machines[late].start_after = 40.0
    gang.machines[slow].import_seconds = 60.0
    await gang.until("go")
    assert gang.at("go") - gang.began >= 60.0
    gang.finish()
    await gang.until("gang_ended", outcome="succeeded")


async def a_node_never_comes(gang: Gang) -> None:
    """One does not start: it is named when the time is over, and all others leave."""
    missing = gang.chance.randrange(1, gang.nodes)
    gang.lose_power([missing])
    await gang.until("gang_ended", outcome="failed", cause="infra")
    assert gang.end["reason"] == f"node {missing} (n{missing + 1}) did not join within {gang.tasks[0].join_timeout:g} s"


async def the_switch_of_node_0_starts_again_while_nodes_join(gang: Gang) -> None:
    """Nobody reaches node 0 for some seconds; then all do, once."""
    await gang.until_joined(gang.nodes // 2)
    gang.cut_off(gang.network.rack(0), LINK_SECONDS * 0.6)
    await gang.until("go")
    gang.finish()
    await gang.until("gang_ended", outcome="succeeded")


# -- how it fails


async def a_rank_fails(gang: Gang) -> None:
    """A rank dies: it is blamed, and none of those whose connections it took along; the gang goes on without a loss."""
    await gang.until("go")
    await asyncio.sleep(gang.chance.uniform(1, 3))
    rank, how = gang.chance.randrange(gang.nodes * gang.nproc), gang.chance.choice((KILLED, OWN))
    gang.fail(rank, how)
    failed = await gang.until("attempt_failed")
    assert (failed["culprit"]["rank"], failed["cause"]) == (rank, "infra" if how is KILLED else "user_error")
    await gang.until("go", attempt=1)
    gang.finish()
    await gang.until("gang_ended", outcome="succeeded")
    assert lost(gang) == set()


async def an_agent_dies_before_it_joins(gang: Gang) -> None:
    """The submitting machine finds an agent dead that never joined, and tells the others: they wait no longer."""
    dead = gang.chance.randrange(gang.nodes)
    gang.lose_power([dead])
    if dead:
        await gang.until_joined(gang.nodes - 1)
    else:
        await asyncio.sleep(5)
    began = asyncio.get_running_loop().time()
    Path(lost_file(gang.tasks[0].run_dir)).write_text(json.dumps({"start": 0, "nodes": [dead]}))
    if dead:
        await gang.until("gang_ended", outcome="failed", cause="infra")
        assert gang.end["reason"] == f"node {dead} (n{dead + 1}) was lost: its agent vanished without a word"
    await asyncio.wait([gang.running[node] for node in gang.live])
    assert asyncio.get_running_loop().time() - began <= 2 * HEARTBEAT_SECONDS + TOLD_SECONDS + CLOSE_PATIENCE


async def a_launcher_is_killed(gang: Gang) -> None:
    """A container ends: its launcher is blamed, in whatever order that and the ends of the others are heard of."""
    await gang.until("go")
    await asyncio.sleep(gang.chance.uniform(1, 3))
    node = gang.chance.randrange(gang.nodes)
    gang.kill_launcher(node)
    failed = await gang.until("attempt_failed")
    assert (failed["culprit"]["node"], failed["cause"]) == (node, "infra"), failed
    await gang.until("go", attempt=1)
    gang.finish()
    await gang.until("gang_ended", outcome="succeeded")
    assert lost(gang) == set()


async def nodes_lose_power(gang: Gang) -> None:
    """One in twenty, in one rack or in many, is silent from one moment on: exactly these are named, all of them."""
    await gang.until("go")
    await asyncio.sleep(gang.chance.uniform(1, 3))
    count = max(1, gang.nodes // 20)
    first = gang.chance.randrange(1, gang.nodes - count + 1)
    scattered = gang.chance.sample(range(1, gang.nodes), count)
    gone = set(gang.chance.choice((scattered, range(first, first + count))))
    began = asyncio.get_running_loop().time()
    gang.lose_power(gone)
    await gang.until("gang_ended", outcome="failed", cause="infra")
    assert asyncio.get_running_loop().time() - began <= KNOWN_SECONDS
    assert lost(gang) == gone
    assert_named(gang, gone)


async def a_rack_loses_power_before_the_ranks_start(gang: Gang) -> None:
    """All of a rack is silent from one moment on, while nodes join, try their ways or get ready: all of it is named."""
    moment = gang.chance.choice(("joining", "preparing"))
    last = gang.machines[-1].rack
    gone = {machine.number for machine in gang.network.rack(gang.chance.randrange(1, last + 1) if last else 0)} - {0}
    late = gang.chance.choice([node for node in range(1, gang.nodes) if node not in gone] or [0])
    if moment == "joining":
        gang.machines[late].start_after = 60.0
        await gang.until_joined(gang.nodes - 1)
    else:
        gang.machines[late].import_seconds = 60.0
        await gang.until_joined(gang.nodes)
    await asyncio.sleep(2)
    gang.lose_power(gone)
    await gang.until("gang_ended", outcome="failed", cause="infra")
    assert lost(gang) == gone, (moment, lost(gang) ^ gone)
    assert_named(gang, gone)


async def an_agent_is_killed(gang: Gang) -> None:
    """A node's agent dies, and its system closes its connections: that node is named."""
    await gang.until("go")
    await asyncio.sleep(gang.chance.uniform(0, 2))
    node = gang.chance.randrange(1, gang.nodes)
    gang.kill_agent(node)
    await gang.until("gang_ended", outcome="failed", cause="infra")
    assert gang.end["reason"] == f"node {node} (n{node + 1}) was lost: its agent closed the connection"


async def a_switch_starts_again(gang: Gang) -> None:
    """A rack is cut off for less than the limit: nobody is lost, and what was said meanwhile comes late."""
    await gang.until("go")
    await asyncio.sleep(1)
    last = gang.machines[-1].rack
    gang.cut_off(gang.network.rack(gang.chance.randrange(last + 1)), LINK_SECONDS * 0.6)
    await asyncio.sleep(1)
    gang.finish()
    await gang.until("gang_ended", outcome="succeeded")
    assert lost(gang) == set()


def assert_named(gang: Gang, nodes: set[int]) -> None:
    """Check that the end's reason names all these nodes and none other, in few words where they are many."""
    reason = gang.end["reason"]
    assert named(reason) == nodes, reason
    assert len(reason) <= 200 + 30 * len(nodes), f"{len(reason)} characters: {reason[:500]}"


def named(reason: str) -> set[int]:
    """Return the nodes that a sentence names: `node 3 (n4)`, `nodes 3-5, 9 (n[4-6,10])`."""
    found: set[int] = set()
    for numbers in re.findall(r"nodes? ([\d, -]+?) \(", reason):
        for part in numbers.split(", "):
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return found


STORIES: tuple[Story, ...] = (
    all_goes_well, node_0_comes_last, a_node_is_slow, a_node_never_comes, an_agent_dies_before_it_joins,
    the_switch_of_node_0_starts_again_while_nodes_join, a_rank_fails, a_launcher_is_killed, nodes_lose_power,
    a_rack_loses_power_before_the_ranks_start, an_agent_is_killed, a_switch_starts_again,
)  # fmt: skip


def told(story: Story, folder: Path, nodes: int, seed: str, **values: Any) -> Gang:
    """Return the gang to which the story has happened, checked."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {"retry": {"user_error": 1, "infra": 3}, "join_timeout": 120.0, **values}
    gang = Gang(folder, nodes, f"{seed} {story.__name__}", **values).run(story)
    must_hold(gang)
    return gang

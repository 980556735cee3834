"""What holds of gangs of any size, whatever happens to them: counted, in virtual time, drawn from SOAK_SEED."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.node.agent import leader, leader_service, listener
from tests.counting import instructions
from tests.simulator.gang import Gang
from tests.simulator.network import Weather
from tests.simulator.stories import (
    STORIES,
    STORM,
    Story,
    all_goes_well,
    named,
    nodes_lose_power,
    the_switch_of_node_0_starts_again_while_nodes_join,
    told,
)

SEED = os.environ["SOAK_SEED"]
OF_NODE_0 = (leader, leader_service, listener)


@pytest.fixture(autouse=True)
def _seed() -> None:
    print(f"SOAK_SEED={SEED}")  # shown where the test fails


@pytest.mark.parametrize(("nodes", "weather"), [(7, Weather()), (40, STORM)], ids=["7-calm", "40-storm"])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_every_story_ends_as_it_must(story: Story, nodes: int, weather: Weather, tmp_path: Path) -> None:
    told(story, tmp_path / "run", nodes, SEED, weather=weather)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "story", [the_switch_of_node_0_starts_again_while_nodes_join, nodes_lose_power], ids=lambda story: story.__name__
)
@pytest.mark.full(
    "tests/simulator/test_gangs.py::test_every_story_ends_as_it_must",
    "tests/simulator/test_gangs.py::test_messages_connections_and_work_of_node_0_are_linear_in_the_nodes",
)
def test_a_thousand_nodes(story: Story, tmp_path: Path) -> None:
    gang = told(story, tmp_path / "run", 1000, SEED)
    assert gang.machines[0].most_ends <= 1000 + 1 + 2 * len(gang.tasks[0].leader_addrs) + 64


def test_the_same_seed_is_the_same_story(tmp_path: Path) -> None:
    one, same, other = (told(nodes_lose_power, tmp_path / name, 20, seed) for name, seed in ("a1", "b1", "c2"))
    assert one.events(0) == same.events(0)
    assert one.events(0) != other.events(0)


def said_by_node_0(gang: Gang) -> tuple[int, int, int]:
    """How many messages node 0 has sent and heard besides heartbeats, and how many connections it had at once."""
    machine = gang.machines[0]
    sent, heard = (sum(count.values()) - count["heartbeat"] for count in (machine.sent, machine.heard))
    return sent, heard, machine.most_ends


async def together(gang: Gang) -> None:
    """All goes well, and takes as long whatever the number of nodes: each second costs node 0 a look at every one."""
    for machine in gang.machines:
        machine.import_seconds = 2.0
    await all_goes_well(gang)


def test_messages_connections_and_work_of_node_0_are_linear_in_the_nodes(tmp_path: Path) -> None:
    def tell(nodes: int) -> Gang:
        folder = tmp_path / f"{nodes}-{len(list(tmp_path.iterdir()))}"
        return told(together, folder, nodes, SEED, weather=Weather(loss=0.0, stragglers=0.0), spread=0.0)

    few, many = tell(40), tell(80)
    for one, two in zip(said_by_node_0(few), said_by_node_0(many), strict=True):
        assert two <= 2 * one
    assert max(machine.most_ends for machine in many.machines[1:]) <= 3  # node 0, and a neighbour on each side
    assert many.machines[0].sent["go"] == many.machines[0].sent["bye"] == 80
    assert max(sum(machine.sent.values()) - machine.sent["heartbeat"] for machine in many.machines[1:]) <= 9
    work_of_few, work_of_many = (instructions(lambda: tell(nodes), *OF_NODE_0) for nodes in (40, 80))  # noqa: B023
    assert work_of_many < 2.3 * work_of_few


def test_a_sentence_about_nodes_is_understood() -> None:
    assert named("nodes 3-5, 9 (n[4-6,10]) were lost: no; node 12 (n13) was lost: so") == {3, 4, 5, 9, 12}
    assert named("node 1 (n2), node 3 (n4) were lost: no") == {1, 3}

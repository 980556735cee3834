"""What the supervisor makes of what a thousand nodes have recorded: decided once, rightly, with work linear in them."""

from __future__ import annotations

import os

import pytest

from orchestrator.looking.evidence import Evidence, state_from
from orchestrator.outcome import restart
from orchestrator.outcome.verdict import Cause, NodeStatus, Outcome
from orchestrator.protocol.events import Event
from orchestrator.runs import reducer
from orchestrator.runs.record import RunRecord
from orchestrator.runs.state import HandleStatus, RunStatus
from orchestrator.supervisor import decide as deciding
from orchestrator.supervisor.decide import Action, Finish, StartAgents, decide
from orchestrator.supervisor.observe import Observation
from tests.counting import instructions
from tests.events import typed
from tests.simulator.gang import Gang
from tests.simulator.stories import assert_named, nodes_lose_power, told

SEED = os.environ["SOAK_SEED"]
NODES = 1000  # whose events are those of the simulated ones again and again


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> Gang:
    """Nodes of which one in twenty has lost power."""
    print(f"SOAK_SEED={SEED}")
    return told(nodes_lose_power, tmp_path_factory.mktemp("run"), 100, SEED)


def recorded(gang: Gang, nodes: int) -> tuple[Event, ...]:
    """What the first nodes have recorded, by the time; as many nodes more as are asked for have recorded the same."""
    submitted = {"kind": "submitted", "time": 0.0}
    events = [
        {**event, "node": node, "time": event["mono"]}
        for node in range(nodes)
        for event in gang.events(node % gang.nodes if node else 0)
        if node < gang.nodes or event["kind"] not in ("gang_ended", "lost_node", "joined")
    ]
    return tuple(typed([submitted, *sorted(events, key=lambda event: event["time"])]))


def observed(gang: Gang, nodes: int, until: float, *, alive: bool, relaunches: bool = True) -> Observation:
    record = RunRecord(
        "r-234567", nnodes=nodes, hosts=tuple(f"n{n + 1}" for n in range(nodes)), job_document={"retry": {"infra": 1}}
    )
    events = tuple(event for event in recorded(gang, nodes) if event.time <= until)
    evidence = Evidence(record, events, dict.fromkeys(range(nodes), alive), False, None, relaunches)
    return Observation(evidence, handle=HandleStatus.SUBMITTED)


def test_nothing_is_done_while_all_goes_its_way(gang: Gang) -> None:
    seen = observed(gang, gang.nodes, gang.at("go") + 0.5, alive=True)
    assert decide(seen) == ()
    assert state_from(seen.evidence).state == RunStatus.RUNNING


def test_the_agents_are_started_again_once_all_have_gone(gang: Gang) -> None:
    (action,) = decide(observed(gang, gang.nodes, 1e9, alive=False))
    assert isinstance(action, StartAgents)
    assert (action.is_new, action.start.start, action.start.cause) == (True, 1, "infra")
    assert action.start.reason == gang.end["reason"]


def test_or_the_verdict_names_those_that_were_lost(gang: Gang) -> None:
    seen = observed(gang, gang.nodes, 1e9, alive=False, relaunches=False)
    (action,) = decide(seen)
    assert isinstance(action, Finish)
    assert (action.verdict.outcome, action.verdict.cause) == (Outcome.FAILED, Cause.INFRA)
    assert action.verdict.reason == gang.end["reason"]
    assert_named(gang, gang.gone)
    nodes = state_from(seen.evidence).nodes
    assert {node.node for node in nodes if node.state == NodeStatus.LOST} == gang.gone


def test_deciding_is_linear_in_the_nodes(gang: Gang) -> None:
    def work(nodes: int) -> int:
        seen = observed(gang, nodes, 1e9, alive=False)
        done: list[tuple[Action, ...]] = []
        count = instructions(lambda: done.append(decide(seen)), deciding, reducer, restart)
        assert isinstance(done[0][0], StartAgents)
        return count

    assert work(NODES) < 2.2 * work(NODES // 2)

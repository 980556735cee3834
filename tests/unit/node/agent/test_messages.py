"""Any JSON in place of any message: no agent, leader or launcher ends by an error."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.node.agent import agent as agent_module
from orchestrator.node.agent import hang
from orchestrator.node.agent import leader as leader_module
from orchestrator.node.agent import ranks as ranks_module
from orchestrator.node.agent.agent import Agent
from orchestrator.node.agent.channel import Channel, pair
from orchestrator.node.launcher import launcher as launcher_module
from orchestrator.node.launcher.launcher import Launcher
from orchestrator.protocol.messages import ORDERS, REPORTS, Heartbeat, OfAttempt, Pong, Report, Trouble, read_report
from orchestrator.protocol.typed import to_json
from tests.local.test_agents import task_in
from tests.unit.node.agent.test_leader import Gang

ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["", "infra", "n1", "10.0.0.1", "m"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.just("0"), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def lines(kinds: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Messages of these kinds: some fields as their class has them, others any JSON, others missing or unknown."""

    def of(kind: str) -> st.SearchStrategy[dict[str, Any]]:
        fields = {name: good(hint) | ANY for name, hint in get_type_hints(kinds[kind]).items() if name != "kind"}
        return st.fixed_dictionaries({"kind": st.just(kind)}, optional={**fields, "unknown": ANY}).map(jsonable)

    return st.sampled_from(sorted(kinds)).flatmap(of)


def good(hint: Any) -> st.SearchStrategy[Any]:
    """Return JSON that may fit a field; nested objects are left to chance."""
    if get_origin(hint) is Union:
        (hint,) = [each for each in get_args(hint) if each is not type(None)]
    known: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(0, 3), float: st.floats(0, 100), str: st.sampled_from(["", "m", "127.0.0.1", "infra"]),
        bool: st.booleans(),
    }  # fmt: skip
    return known.get(hint, st.just([]) | st.just({}))


def jsonable(value: Any) -> Any:
    """Return what a peer reads of the value, with NaN as its own JSON writes it."""
    return json.loads(json.dumps(value, default=str))


@FUZZ
@given(st.data())
def test_whatever_members_send_the_leader_goes_on_or_ends_the_gang(data: st.DataObject) -> None:
    gang = Gang(
        nnodes=2, hang={"action": "restart"}, idle={"after": 1, "do": "cancel"}, has_spares=data.draw(st.booleans())
    )
    phase = data.draw(st.sampled_from(["joining", "checking", "preparing", "running"]))
    if phase != "joining":
        gang.join(0, 1)
    if phase in ("preparing", "running"):
        gang.everyone("path", error=None)
    if phase == "running":
        gang.ready()
    for line in data.draw(st.lists(lines(REPORTS) | ANY.map(jsonable), max_size=8)):
        report = read_report(line) if isinstance(line, dict) else None
        if report is not None and (phase != "joining" or gang.leader.roster.hellos):
            gang.leader.received(data.draw(st.integers(0, 1)), report, gang.now)
        gang.now += data.draw(st.floats(0, 5))
        gang.leader.tick(gang.now)


class Silent:
    """A launcher that takes every order and does nothing."""

    pid, asked, ended_for, is_dismissed, left = None, None, "", False, ()
    container: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        self.masked = str

    def __getattr__(self, name: str) -> Any:
        async def work(*_: Any) -> None: ...

        return {"serves": lambda _: True, "silence": lambda _: 0.0, "end": work, "dismiss": work}.get(
            name, lambda *_: None
        )


async def agent_in(folder: Path) -> tuple[Agent, Channel]:
    agent = Agent(task_in(folder))
    agent.ranks.launcher = Silent()  # type: ignore[assignment]
    agent.ranks.running = agent.ranks.members = {0, 1}
    agent.channel, other = await pair()
    return agent, other


@FUZZ
@given(st.lists(lines(ORDERS) | lines(REPORTS) | ANY.map(jsonable), max_size=6), st.booleans())
def test_whatever_leader_and_launcher_send_the_agent_goes_on(
    monkeypatch: pytest.MonkeyPatch, sent: list[Any], from_leader: bool
) -> None:
    """Only the leader's order, `bye`, ends it; a damaged message is the node's trouble."""
    monkeypatch.setattr(ranks_module, "end_marked", lambda *_: (0, []))

    async def no_way(*_: Any) -> str:
        return "no way"

    monkeypatch.setattr(agent_module, "probe", no_way)

    async def main(folder: Path) -> None:
        agent, other = await agent_in(folder)
        agent.tls = agent.tls or object()  # type: ignore[assignment]
        for line in sent:
            if not isinstance(line, dict) or line.get("kind") == "bye":
                continue
            if from_leader:
                await agent._obey(line)
            elif (report := read_report(line)) is not None:
                await agent._handle_report(report)
        await asyncio.gather(*agent.tasks)
        assert agent.outcome is None
        while not agent.inbox.empty():
            await agent.inbox.get_nowait()()
        assert agent.outcome is None  # no task beside the loop has failed
        await agent.channel.close()  # type: ignore[union-attr]
        await other.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))


@FUZZ
@given(st.lists(lines(ORDERS) | ANY.map(jsonable), max_size=6))
def test_whatever_the_agent_sends_the_launcher_goes_on(sent: list[Any]) -> None:
    """It starts no rank here: an order to start some is left out."""
    with tempfile.TemporaryDirectory() as folder:
        read_end, write_end = os.pipe()
        launcher = Launcher(task_in(Path(folder)), read_end, os.open(os.devnull, os.O_WRONLY))
        try:
            kept = [line for line in sent if not (isinstance(line, dict) and line.get("kind") == "go")]
            os.write(write_end, b"".join(json.dumps(line).encode() + b"\n" for line in kept)[:60_000] + b"\n")
            assert launcher._read_orders() == (None, True)
        finally:
            launcher._stop_listening()
            for descriptor in (read_end, write_end, launcher.reports):
                os.close(descriptor)


def test_every_message_has_a_handler() -> None:
    """A new message without a handler would be ignored."""
    to_agent = {each for each in ORDERS.values() if each.kind not in ("heartbeat", "ping")}
    assert set(agent_module._ORDERS) == to_agent
    to_leader, of_launcher = set(leader_module._HANDLERS) | set(hang.HANDLERS), set(ranks_module._HANDLERS)
    assert to_leader | of_launcher >= {each for each in REPORTS.values() if each not in (Heartbeat, Pong)}
    assert {each.kind for each in launcher_module._HANDLERS} == {
        "prepare",
        "find_module",
        "go",
        "stop",
        "stacks",
        "ping",
    }


def test_a_damaged_report_is_its_nodes_trouble() -> None:
    report = read_report({"kind": "exit", "attempt": 0, "rank": -1})
    assert isinstance(report, Trouble)
    assert (
        report.reason
        == "the report 'exit' is not understood: rank: the value, or its length, is not between 0 and 1.67772e+07"
    )
    assert read_report({"kind": "of a later version"}) is None


@pytest.mark.parametrize("kind", sorted(REPORTS))
def test_a_report_is_read_as_it_was_written(kind: str) -> None:
    cls: type[Report] = REPORTS[kind]
    values = {"int": 3, "float": 2.5, "str": "x", "bool": True}
    made = {
        each.name: values.get(getattr(each.type, "__name__", ""), each.default)
        for each in dataclasses.fields(_made(cls))
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    }
    fields = {
        "rank": 3,
        "attempt": 1,
        "seconds": 5,
        "limit": 9.0,
        "pids": {1: 2},
    }
    report = cls(**{**made, **{name: value for name, value in fields.items() if name in made}})
    assert read_report(json.loads(json.dumps(report.to_json()))) == report
    assert to_json(report) == {name: value for name, value in report.to_json().items() if name != "kind"}


def _made(cls: type[Report]) -> Any:
    to_json.__globals__["_plan_of"](cls)
    return cls


def test_which_reports_are_of_an_attempt() -> None:
    assert {kind for kind, cls in REPORTS.items() if issubclass(cls, OfAttempt)} >= {"exit", "idle", "ready", "stall"}

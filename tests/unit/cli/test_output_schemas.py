"""Each command with --json has a schema, which the JSON that tests read from it is compared with."""

from __future__ import annotations

import json

import click
import pytest
from jsonschema import Draft202012Validator

from orchestrator.cli import orch as group
from orchestrator.cli.output_schemas import OUTPUTS, output_schema
from orchestrator.outcome.verdict import NodeState, NodeStatus, Outcome, Verdict
from orchestrator.protocol.events import KINDS
from orchestrator.runs.state import RunState, RunStatus
from tests.output_schema import problems

from .test_answers import Orch

CONTEXT = click.Context(group)


def as_json(value: object) -> object:
    """What a reader of the printed text gets."""
    return json.loads(json.dumps(value))


def test_each_command_with_json_has_a_schema_and_no_other() -> None:
    commands = {name: group.get_command(CONTEXT, name) for name in group.list_commands(CONTEXT)}
    with_json = {
        name for name, command in commands.items() if command and any("--json" in each.opts for each in command.params)
    }
    assert set(OUTPUTS) == with_json


@pytest.mark.parametrize("command", OUTPUTS)
def test_each_schema_is_one(command: str) -> None:
    schema = output_schema(command)
    Draft202012Validator.check_schema(schema)
    named = set(json.dumps(schema).split('"#/$defs/')[1:])
    assert {each.split('"')[0] for each in named} <= set(schema.get("$defs", {}))


def test_the_forms_of_a_command_share_their_definitions() -> None:
    """They are stored by their names, so two that differ must not have one name."""
    for command in ("status", "submit", "nodes", "wait", "cancel"):
        definitions = output_schema(command)["$defs"]
        assert all("__" not in name for name in definitions), command


def test_what_is_missing_and_what_is_unknown_is_noticed() -> None:
    nodes = (NodeState(0, "n1", NodeStatus.ENDED, (0, 2), {0: "exit code 1"}),)
    state = RunState("a-1", "a", "lab", 1.0, RunStatus.FAILED, nodes=nodes, verdict=Verdict(Outcome.FAILED)).to_json()
    assert problems("wait", as_json(state)) == []
    assert problems("wait", as_json({**state, "colour": "red"})) != []
    assert problems("wait", as_json({name: value for name, value in state.items() if name != "detail"})) != []
    assert problems("wait", as_json({**state, "state": "well"})) != []


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_events_of_every_kind(kind: str) -> None:
    assert problems("events", {"kind": kind, "time": 1.0, "node": 0, "whatever": [1]}) == []


def test_the_command_prints_it(in_process: Orch) -> None:
    done = in_process("schema", "output", "why")
    assert json.loads(done.out) == output_schema("why")
    for words, said in (
        (("output",), "COMMAND is only allowed with `orch schema output`"),
        (("job", "why"), "COMMAND is only allowed with `orch schema output`"),
        (("output", "logs"), "orch logs has no --json"),
    ):
        refused = in_process("schema", *words)
        assert refused.code == 2
        assert said in refused.err

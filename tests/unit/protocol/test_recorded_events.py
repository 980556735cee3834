"""Events that earlier versions wrote can be read: records of a run that succeeded and of one that failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.protocol.events import AttemptFailed, RankExit, Started, of, read_event, read_events
from orchestrator.protocol.typed import to_json
from orchestrator.runs.record import RunRecord
from orchestrator.runs.reducer import reduce

RECORDS = sorted((Path(__file__).parent / "recorded_events").glob("*.jsonl"))


def lines_of(record: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in record.read_text().splitlines()]


def test_there_are_two_runs_of_three_versions() -> None:
    assert len(RECORDS) == 6


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_each_event_is_read_with_all_its_fields(record: Path) -> None:
    for line in lines_of(record):
        event = read_event(line)
        assert event is not None, line
        found = {**{name: getattr(event, name) for name in line}, **event.to_json()}
        for name, value in line.items():
            if name not in ("culprit", "error"):
                assert json.loads(json.dumps(found[name])) in (value, str(value)), (line["kind"], name)
        assert read_event(json.loads(json.dumps(event.to_json()))) == event


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_the_run_ended_as_it_did_then(record: Path) -> None:
    events = read_events(lines_of(record))
    nodes = 1 + max(event.node for event in events if event.node is not None)
    run = RunRecord.from_json("r-1", {"name": "r", "nnodes": nodes, "hosts": ["node-a"] * nodes, "kind": "local"})
    state = reduce(run, events, dict.fromkeys(range(nodes), False), rank0_done=True)
    assert state.verdict is not None
    if record.stem.startswith("hello"):
        assert (state.state, len(of(events, RankExit))) == ("succeeded", 4)
        assert sorted(event.ranks for event in of(events, Started)) == [(0, 2), (2, 4)]
    else:
        (failed,) = of(events, AttemptFailed)
        assert (failed.culprit.rank, failed.culprit.code) == (1, 1)
        assert failed.culprit.error is not None
        assert failed.culprit.error.type == "ValueError"
        assert state.verdict.reason == "rank 1 on node 0 (node-a) ended with exit code 1: ValueError: boom"


@pytest.mark.parametrize("damage", [None, [], {"a": 1}, "x" * 9, -1, 1e400, True])
def test_a_damaged_field_costs_its_event_only_if_the_event_is_nothing_without_it(damage: Any) -> None:
    """A full disk or a flipped bit may leave anything."""
    go = {"kind": "go", "attempt": 0, "world_size": 2, "nproc": [2]}
    assert read_event({**go, "world_size": damage}) is None
    event = read_event({**go, "resume_from": damage, "nproc": {"a": 1}, "unknown": damage})
    assert event is not None
    assert to_json(event) == {
        "attempt": 0, "world_size": 2, **({"resume_from": damage} if isinstance(damage, str) else {}),
    }  # fmt: skip


def test_an_event_of_a_later_version_is_ignored() -> None:
    assert [read_event(line) for line in ({"kind": "of 2030"}, {"kind": 3}, {}, [], None)] == [None] * 5

"""What a submit recorded, read back: typed, and without what can't be what was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import StoreError
from orchestrator.outcome.verdict import Cause, NodeStatus, Outcome, Verdict
from orchestrator.protocol.outputs import OutputRules
from orchestrator.protocol.str_enum import member_of
from orchestrator.runs.record import Dependency, NotifyEntry, PlanRecord, RunRecord, SweepPoint
from orchestrator.runs.state import Ending, HandleStatus, RunStatus, drop_invalid_fields
from orchestrator.runs.store import RunDir, create_run

WRITTEN: dict[str, Any] = {
    "version": 1, "orch": "0.4.0", "run_id": "r-234567", "name": "r", "kind": "slurm-login", "profile_name": "lab",
    "created": 1000, "submitter": {"pid": 7, "started": 8, "host": "a"}, "nnodes": 2, "hosts": ["n0", "n1"],
    "world_size": None, "grace": 12.5, "profile": {"login": "me@login", "workdir": "/shared"},
    "job": {"retry": {"infra": 3, "preempted": None}, "secrets": ["KEY"],
            "notify": [{"on": ["hung"], "command": ["x"]}]},
    "job_file": "/j.yaml", "profile_file": "/p.yaml", "code_dir": "/code", "given": ["A="], "waits": True,
    "after": {"run": "b-333333", "if": "ok"}, "repeats": None, "python": "3.11.7",
    "sweep": {"id": "s-444444", "index": 3, "values": {"lr": "0.1"}, "parallel": 2},
}  # fmt: skip


def test_all_that_is_written_is_read() -> None:
    record = RunRecord.from_json("r-234567", json.loads(json.dumps(WRITTEN)))
    assert record == RunRecord(
        "r-234567", "r", "lab", "slurm-login", 1000, 2, ("n0", "n1"), None, 12.5,
        WRITTEN["job"], WRITTEN["profile"], "/j.yaml", "/p.yaml", "/code", ("A=",), True,
        Dependency("b-333333", succeeds=True), SweepPoint("s-444444", 3, {"lr": "0.1"}, 2), None, "0.4.0", "3.11.7",
        scheduler="Slurm", is_remote=True, home="a",
    )  # fmt: skip
    assert (record.retry, record.secrets, record.login) == ({"infra": 3, "preempted": None}, ("KEY",), "me@login")
    assert record.notify == (NotifyEntry(("hung",), ("x",)),)
    assert record.values == {"lr": "0.1"}
    assert record.after is not None
    assert record.point is not None
    assert (record.after.to_json(), record.point.to_json()) == (WRITTEN["after"], WRITTEN["sweep"])


@pytest.mark.parametrize(
    ("values", "is_remote"),
    [
        ({"kind": "added", "is_remote": True}, True),
        ({"kind": "ssh", "is_remote": True}, True),
        ({"kind": "slurm", "is_remote": False}, False),
        ({"kind": "ssh"}, True),
        ({"kind": "slurm-login"}, True),
        ({"kind": "slurm"}, False),
        ({"kind": "local", "is_remote": "yes"}, False),
    ],
    ids=str,
)
def test_a_record_states_whether_the_files_are_on_other_machines(values: dict[str, Any], is_remote: bool) -> None:
    """Records of older releases have only the kind."""
    assert RunRecord.from_json("r", values).is_remote is is_remote


@pytest.mark.parametrize(
    ("damage", "field", "default"),
    [
        ({"nnodes": "2"}, "nnodes", 0),
        ({"nnodes": -1}, "nnodes", 0),
        ({"nnodes": 10**9}, "nnodes", 0),
        ({"nnodes": True}, "nnodes", 0),
        ({"hosts": "n0"}, "hosts", ()),
        ({"kind": None}, "kind", "local"),
        ({"created": "x"}, "created", 0.0),
        ({"job": []}, "retry", {}),
        ({"job": {"retry": {"infra": "3", "preempted": 1}}}, "retry", {"preempted": 1}),
        ({"job": {"notify": ["x", {"on": 1}]}}, "notify", (NotifyEntry(), NotifyEntry())),
        ({"profile": 3}, "login", None),
        ({"after": "b"}, "after", None),
        ({"after": {"run": 3, "if": "ok"}}, "after", Dependency("?", succeeds=True)),
        ({"sweep": {"index": "3", "values": []}}, "point", SweepPoint()),
    ],
)
def test_what_was_damaged_counts_as_lost(damage: dict[str, Any], field: str, default: object) -> None:
    assert getattr(RunRecord.from_json("r", {**WRITTEN, **damage}), field) == default


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*WRITTEN, "run", "if", "on"]), inner),
)


@given(
    st.dictionaries(st.sampled_from(sorted(WRITTEN)), anything), st.dictionaries(st.sampled_from(["tasks"]), anything)
)
def test_no_damage_raises(damage: dict[str, Any], plan: dict[str, Any]) -> None:
    record = RunRecord.from_json("r", {**WRITTEN, **damage})
    assert isinstance(record.retry, dict)
    assert all(isinstance(entry, NotifyEntry) for entry in record.notify)
    assert isinstance(PlanRecord.from_json(plan).first.code_dir, str)


@pytest.mark.parametrize(
    ("job", "rules"), [({"outputs": {"max_size": 5}}, OutputRules(max_size=5)), ([], OutputRules())]
)
def test_a_plan_has_the_rules_for_outputs_of_its_job(job: object, rules: OutputRules) -> None:
    assert PlanRecord.from_json({"job": job}).outputs == rules


def test_a_run_without_a_record_is_told_from_one_that_cant_be_read(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "r")
    assert run.record() == RunRecord("r", is_lost=True)
    run = create_run(tmp_path, "r", WRITTEN)
    assert not run.record().is_lost
    (run.path / "run.json").write_text("{")
    with pytest.raises(StoreError, match=r"run\.json can't be read"):
        run.record()


def test_how_far_a_submit_got(tmp_path: Path) -> None:
    run = create_run(tmp_path, "r", {})
    assert run.handle_status() is None
    for state, found in (("intent", HandleStatus.INTENT), ("submitted", HandleStatus.SUBMITTED), (3, None)):
        run.write("handle.json", {"state": state})
        assert run.handle_status() is found


def test_an_ending_is_read_back_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    run = create_run(tmp_path, "r", {})
    assert run.ending() is None
    ending = Ending(Verdict(Outcome.FAILED, Cause.INFRA, "why", rank=3, tail=("a",)), 12.5)
    run.write("verdict.json", ending.to_json())
    assert run.ending() == ending
    assert json.loads((run.path / "verdict.json").read_text())["outcome"] == "failed"
    run.write("verdict.json", {**ending.to_json(), "cause": "of the future", "ended": "x", "rank": []})
    assert run.ending() == Ending(Verdict(Outcome.FAILED, Cause.NONE, "why", tail=("a",)))
    for damaged in ('{"outcome": "x"}', "{", "[]", '{"outcome": 3}'):
        (run.path / "verdict.json").write_text(damaged)
        assert run.ending() is None


def test_what_is_final() -> None:
    assert [status.value for status in RunStatus if status.final] == ["succeeded", "failed", "cancelled"]
    assert [status.value for status in NodeStatus if status.final] == ["ended", "lost"]
    assert [status.value for status in HandleStatus if status.final] == ["submitted"]
    assert all(RunStatus(outcome.value).final for outcome in Outcome)


def test_values_of_another_version_are_none() -> None:
    assert member_of(Cause, "infra") is Cause.INFRA
    assert [member_of(Cause, value) for value in ("x", None, 3, [])] == [None] * 4
    assert drop_invalid_fields([], {"a": (str,)}) == {}
    assert drop_invalid_fields({"a": True, "b": 1}, {"a": (int,), "b": (int,), "c": (str,)}) == {"b": 1}

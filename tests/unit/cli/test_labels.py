"""orch tag and orch note: words, sweeps, JSON, what is refused, and status and the API, which show the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from orchestrator.api import Run
from orchestrator.cli import orch
from orchestrator.errors import UsageError
from tests.unit.views.runs_made import FAILED, begin, end, make


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    for number in (1, 2):
        run = make(tmp_path, f"tune-abcdef.{number}", sweep={"id": "tune-abcdef", "index": number, "values": {}})
        begin(run)
        end(run, FAILED)
    return tmp_path


def call(*words: str) -> Result:
    return CliRunner().invoke(orch, words, standalone_mode=False, catch_exceptions=True)


def test_tags_are_added_removed_and_shown() -> None:
    assert call("tag", "tune-abcdef.1", "+a", "b").exit_code == 0
    assert call("tag", "tune-abcdef.1").output == "tune-abcdef.1: a, b\n"
    call("tag", "tune-abcdef.1", "-a", "--json")
    assert json.loads(call("tag", "tune-abcdef.1", "--json").output) == {"tune-abcdef.1": {"tags": ["b"], "note": ""}}
    call("tag", "tune-abcdef", "+of-all")
    assert call("tag", "tune-abcdef").output == "tune-abcdef.1: b, of-all\ntune-abcdef.2: of-all\n"
    for words in (("+a b",), ("--x",), ("-",)):
        assert isinstance(call("tag", "tune-abcdef.1", *words).exception, UsageError)


def test_a_note_is_set_shown_and_removed() -> None:
    call("note", "tune-abcdef.1", "the lr was \x1b[31mtoo high".replace("\x1b[31m", ""))
    assert call("note", "tune-abcdef.1").output == "the lr was too high\n"
    page = call("status", "tune-abcdef.1").output
    assert "note       the lr was too high" in page
    assert json.loads(call("status", "tune-abcdef.1", "--json").output)["labels"]["note"] == "the lr was too high"
    assert {row["labels"]["note"] for row in json.loads(call("status", "--json").output)} == {"", "the lr was too high"}
    call("note", "tune-abcdef.1", "")
    assert call("note", "tune-abcdef.1").output == ""


def test_python_has_the_same(home: Path) -> None:
    run = Run(home / "runs" / "tune-abcdef.1")
    assert run.tag("a", "b") == ("a", "b")
    assert run.tag(remove=["a"]) == run.tags == ("b",)
    run.set_note("x")
    assert run.note == "x"

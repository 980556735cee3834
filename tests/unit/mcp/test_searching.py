"""An expression that an agent gives can't stop the server, and each answer names the secrets that can't be masked."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.mcp import answers, searching
from orchestrator.mcp.searching import newest_matches
from orchestrator.runs.store import RunDir
from tests.patience import PATIENCE

ENDLESS = "a" * 60 + "b"


def test_the_newest_matches_are_found_in_their_order() -> None:
    lines = [f"step {number}\u2028" for number in range(5000)]
    assert newest_matches(r"7\W", lines, 3) == ([4977, 4987, 4997], 0)
    assert newest_matches("nothing", lines, 3) == ([], 0)
    assert newest_matches("x", [], 3) == ([], 0)


def test_an_expression_without_an_end_is_stopped_and_what_was_not_searched_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = time.monotonic()
    found, left = newest_matches("(a+)+$", [*["older"] * 450, ENDLESS, *["aaa", "b"] * 100], 500)
    assert time.monotonic() - began < PATIENCE
    assert found == list(range(451, 651, 2))
    assert left == 451


def test_only_the_newest_lines_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "MOST_SEARCHED", 25)
    assert [line for _, line in searching.newest_of((None, f"line {n:5}") for n in range(9))] == [  # type: ignore[misc]
        "line     7",
        "line     8",
    ]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run whose program printed a line that an expression takes hours to search, and whose secret is not set here."""
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("API_TOKEN", raising=False)
    made = RunDir(tmp_path / "state/runs/job-abcdef")
    folder = made.node(0) / "attempt_0"
    folder.mkdir(parents=True)
    (folder / "rank_0.log").write_text(f"aaa first\n{ENDLESS}\naaa\n")
    for each in (tmp_path / "state", tmp_path / "state/runs", made.path):
        each.chmod(0o700)
    made.write("run.json", {"run_id": made.run_id, "kind": "local", "job": {"name": "job"}, "submitted_at": 1.0})
    made.write("plan.json", {"secret_names": ["API_TOKEN"], "tasks": [{}]})
    made.write("verdict.json", {"outcome": "failed", "reason": "x", "ended_at": 2.0})
    return made


def test_the_tool_answers_within_its_deadline(run: RunDir) -> None:
    answer = answers.logs(run.run_id, grep="(a+)+$")
    assert answer["attempts"] == [{"attempt": 0, "lines": {"untrusted": ["aaa"]}}]
    assert "the expression took longer than 1 s: 3 older lines were not searched" in answer["stopped"]
    assert "stopped" not in answers.logs(run.run_id, grep="first")
    with pytest.raises(UsageError, match=r"is not valid: missing .* at position 0"):
        answers.logs(run.run_id, grep="(")


@pytest.mark.parametrize("tool", answers.READING)
def test_each_answer_names_the_secrets_that_are_not_masked(run: RunDir, tool: object) -> None:
    answer = answers.list_runs() if tool is answers.list_runs else tool(run.run_id)  # type: ignore[operator]
    assert answer["not_masked"] == ["API_TOKEN"], json.dumps(answer)
